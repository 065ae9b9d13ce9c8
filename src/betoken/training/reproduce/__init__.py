"""Claims of papers, repeated from nothing: one function and one folder each, continued by the same call.

trips.py       PTP on grid trips of known entropy: two students, and C-PTP from scratch
embeddings.py  the three ways in which a student can read a random number, on the same trips
python.py      PTP on Python source: two students against an ordinary small draft model; corpus.py: that source
stages.py      what they share: trainings in one folder, and writing what was found
decoding.py    students and draft models put to use: answers of the real decoder, each compared with plain sampling
charts.py      its picture
"""
