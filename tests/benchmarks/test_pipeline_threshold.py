"""The benchmark of the largest elements of rows, on small matrices: all arms give what they should."""

import pytest

from benchmarks import bench_pipeline, pipeline_threshold

pytestmark = pytest.mark.thorough


def test_all_arms_are_checked_and_the_report_has_the_targets(monkeypatch):
    monkeypatch.setattr(pipeline_threshold, "SHAPES", ((8, 4096), (4, 4096)))
    told = []
    section = pipeline_threshold.measure(False, told.append)
    assert len(told) == len(section.figures["cells"]) == 2 * len(pipeline_threshold.SPARSITIES)
    assert len(section.verdicts) == 3
    text = bench_pipeline.render([section], 60.0, "make bench-pipeline")
    assert "threshold of [8, 4096] at 0.95" in text and "| backward |" in text
