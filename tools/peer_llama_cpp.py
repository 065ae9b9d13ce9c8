"""Plain decoding here and in llama.cpp, on the same GGUF file, with the same threads, in alternation.

    pip install xllamacpp                     # or llama-cpp-python; or have a llama-bench and name it
    python tools/peer_llama_cpp.py MODEL.gguf [--threads 2] [--prompt 256] [--tokens 64] [--rounds 5]
                                   [--llama-bench PATH] [--betoken-model NAME] [--json]

Each engine runs in a process of its own, one after the other, `--rounds` times; the order changes from round to round.
A process loads the model, warms up, and times the prefill of a prompt and then `--tokens` tokens of greedy decoding,
nothing ending early. Printed are medians over the rounds, with the slowest and the fastest: prefill in tokens a second,
decoding in tokens a second, and t(1), the milliseconds of one decoding step.

betoken converts the weights of a GGUF file to int8 of its own; llama.cpp computes with the file's own types. So they
answer with about the same quality from a Q8_0 file, and from a smaller one llama.cpp reads fewer bytes a token.
Run it on an idle machine.
"""

# ruff: noqa: T201 - a table on the terminal is what this script is for

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

WARM_UP_TOKENS = 8


class Job(NamedTuple):
    """What each process does."""

    model: str
    threads: int
    prompt: int
    tokens: int


class Timing(NamedTuple):
    """What it found."""

    engine: str
    prefill_per_s: float
    tokens_per_s: float
    step_s: float
    """t(1): median of the decoding steps, or their mean where an engine tells no more."""


def prompt_of(length: int) -> list[int]:
    """Token ids that every model of interest has; which ones makes no difference to the speed."""
    return [(7919 * place + 13) % 10_000 + 256 for place in range(length)]


def run_betoken(job: Job) -> Timing:
    """Our own: the command line's defaults for this machine."""
    from betoken.bench.subject import Method, ModelSpec, load_subject
    from betoken.bench.trial import measure
    from betoken.decode import Request
    from betoken.state import StopSettings

    subject = load_subject(ModelSpec(job.model, threads=job.threads))

    def decode(tokens: int) -> dict[str, Any]:
        stop = StopSettings(max_new_tokens=tokens, ignore_eos=True)
        return measure(Method.plain().decoder(subject), [Request(prompt_of(job.prompt), stop=stop)])

    decode(WARM_UP_TOKENS)
    found = decode(job.tokens)
    engine = f"betoken {version('betoken')}, {subject.target.dtype}"
    return Timing(engine, (job.prompt - 1) / found["prefill_s"], found["tokens_per_s"], found["token_p50_s"])


def run_llama_cpp_python(job: Job) -> Timing:
    """llama.cpp by the package llama-cpp-python."""
    import llama_cpp

    model = llama_cpp.Llama(
        job.model,
        n_ctx=job.prompt + job.tokens + 64,
        n_threads=job.threads,
        n_threads_batch=job.threads,
        n_gpu_layers=0,
        verbose=False,
    )

    def decode(tokens: int) -> tuple[float, float, list[float]]:
        model.reset()
        began = perf_counter()
        model.eval(prompt_of(job.prompt))
        filled = perf_counter()
        steps = []
        for _ in range(tokens):
            tick = perf_counter()
            model.eval([model.sample(temp=0.0)])
            steps.append(perf_counter() - tick)
        return filled - began, perf_counter() - filled, steps

    decode(WARM_UP_TOKENS)
    prefill, whole, steps = decode(job.tokens)
    engine = f"llama.cpp by llama-cpp-python {version('llama-cpp-python')}"
    return Timing(engine, job.prompt / prefill, job.tokens / whole, median(steps))


def run_xllamacpp(job: Job) -> Timing:
    """llama.cpp by the package xllamacpp, whose server tells its own timings."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = job.model
    settings.n_ctx = job.prompt + job.tokens + 64
    settings.n_parallel = 1
    settings.n_gpu_layers = 0
    settings.cpuparams.n_threads = job.threads
    settings.cpuparams_batch.n_threads = job.threads
    settings.warmup = True
    server = xllamacpp.Server(settings)

    def decode(tokens: int) -> dict[str, float]:
        asked = {
            "prompt": prompt_of(job.prompt),
            "n_predict": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer = server.handle_completions(asked)
        found: dict[str, Any] = json.loads(answer) if isinstance(answer, str) else answer
        if "timings" not in found:
            raise SystemExit(f"xllamacpp answers without timings: {str(found)[:300]}")
        return dict(found["timings"])

    decode(WARM_UP_TOKENS)
    found = decode(job.tokens)
    engine = f"llama.cpp by xllamacpp {version('xllamacpp')}"
    step = found["predicted_per_token_ms"] / 1000
    return Timing(engine, found["prompt_per_second"], found["predicted_per_second"], step)


def run_llama_bench(program: str, job: Job) -> Timing:
    """llama.cpp's own benchmark program: prefill of an empty cache, and decoding behind the prompt (-d)."""
    command = [program, "-m", job.model, "-t", str(job.threads), "-r", "1", "-ngl", "0", "-o", "json"]
    fill = _llama_bench([*command, "-p", str(job.prompt), "-n", "0"])
    step = _llama_bench([*command, "-p", "0", "-n", str(job.tokens), "-d", str(job.prompt)])
    engine = f"llama.cpp by llama-bench {fill['build_commit']}"
    return Timing(engine, fill["avg_ts"], step["avg_ts"], 1.0 / step["avg_ts"])


def _llama_bench(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
    (found,) = json.loads(done.stdout)
    return dict(found)


PEERS: dict[str, tuple[str, Callable[[Job], Timing]]] = {
    "llama-cpp-python": ("llama_cpp", run_llama_cpp_python),
    "xllamacpp": ("xllamacpp", run_xllamacpp),
}
"""Package -> the module to import, what times it. The first that can be imported is taken."""


def engines(arguments: argparse.Namespace) -> list[str]:
    """betoken and the peer, by the names that `--engine` takes."""
    if arguments.llama_bench:
        return ["betoken", "llama-bench"]
    found = [package for package, (module, _) in PEERS.items() if find_spec(module) is not None]
    if not found:
        raise SystemExit(f"no llama.cpp here: pip install one of {', '.join(PEERS)}, or --llama-bench PATH")
    return ["betoken", found[0]]


def run_one(engine: str, job: Job, arguments: argparse.Namespace) -> Timing:
    """In this process."""
    if engine == "betoken":
        return run_betoken(job._replace(model=arguments.betoken_model or job.model))
    if engine == "llama-bench":
        return run_llama_bench(arguments.llama_bench, job)
    return PEERS[engine][1](job)


def run_apart(engine: str) -> Timing:
    """The same in a process of its own, with the same command line."""
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{engine} failed:\n{done.stderr.strip()[-2000:]}")
    return Timing(**json.loads(lines[-1]))


def told(found: dict[str, list[Timing]]) -> str:
    """A table in Markdown."""
    lines = [
        "| engine | prefill, tokens/s | decoding, tokens/s | t(1), ms | slowest and fastest, tokens/s |",
        "| --- | --: | --: | --: | --: |",
    ]
    for timings in found.values():
        speeds = [one.tokens_per_s for one in timings]
        middle = [median(values) for values in zip(*((one[1:]) for one in timings), strict=True)]
        ends = f"{min(speeds):.1f} {max(speeds):.1f}"
        lines.append(f"| {timings[0].engine} | {middle[0]:.1f} | {middle[1]:.1f} | {1000 * middle[2]:.2f} | {ends} |")
    own, peer = ([one.tokens_per_s for one in timings] for timings in found.values())
    ratios = [a / b for a, b in zip(own, peer, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return "\n".join([*lines, "", f"betoken decodes at {median(ratios):.2f}x of llama.cpp ({spread} by round)"])


def main() -> None:
    """Read the command line; alternate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama-bench", help="llama.cpp's llama-bench, instead of a Python package")
    parser.add_argument("--betoken-model", help="what betoken loads instead of the file: a store name or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    job = Job(str(Path(arguments.model).resolve()), arguments.threads, arguments.prompt, arguments.tokens)
    if not Path(job.model).is_file() or min(job.threads, job.prompt - 1, job.tokens, arguments.rounds) < 1:
        parser.error("name a GGUF file; threads, tokens and rounds must be at least 1, the prompt 2")
    if arguments.engine:
        print(json.dumps(run_one(arguments.engine, job, arguments)._asdict()))
        return
    names = engines(arguments)
    found: dict[str, list[Timing]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            found[name].append(run_apart(name))
            print(f"round {number + 1}, {name}: {found[name][-1].tokens_per_s:.1f} tokens/s", file=sys.stderr)
    result = {name: [one._asdict() for one in timings] for name, timings in found.items()}
    print(json.dumps({"job": job._asdict(), "timings": result}) if arguments.json else told(found))


if __name__ == "__main__":
    main()
