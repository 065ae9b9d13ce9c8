"""Training: PTP students, plain language models of any size, and the teacher samples they learn from.

    draws.py       random numbers of training, a pure function of seed, purpose and step
    intervals.py   which random numbers pick a token: the inverse of `sampling.pick_inverse_cdf`, in batches
    vocabulary.py  tokenizers of small models; data.py: documents to rows of tokens; collect.py: teacher samples
    windows.py     branches of auxiliary nodes as a token tree, and the mask and positions that follow from it
    model.py       the two passes of a student on a transformers model; build.py makes or loads that model
    objectives.py  what auxiliary nodes are fed and what they should say
    ptp.py, lm.py  the two tasks; fit.py: the one loop; checkpoint.py; validate.py; save.py: the student folder

Needs the optional packages of `pip install 'betoken[train]'`.
"""
