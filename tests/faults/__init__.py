"""One test, at least, for each fault that was found and mended, by public names only.

Every test in this folder fails on the commit in which its fault was found; `python -m tests.faults.against REVISION`
shows that. What a mend must not break besides has its tests with the part that was mended.
"""
