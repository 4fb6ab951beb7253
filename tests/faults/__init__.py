"""At least one test for each bug that was found and fixed, using only public names.

Every test in this folder fails on the commit in which its bug was found; `python -m tests.faults.against REVISION`
shows that. Further tests of a fix are in the tests of the part that was fixed.
"""
