"""What another version of Keras changes of its private members that we use."""

from tools import next_keras


def test_a_version_differs_in_nothing_from_itself():
    assert next_keras.changes(next_keras.members(), next_keras.members(), next_keras.used()) == {}


def test_what_is_used_is_found_also_where_it_is_overridden_or_a_text():
    assert {"_backend_update_step", "_use_weight_decay", "_learning_rate", "_iterations"} <= next_keras.used()


def test_each_way_in_which_a_member_may_change_is_told():
    here = {each: ["(self)", "body"] for each in ("A._one", "A._two", "B._three", "B._four")}
    there = {"A._one": ["(self)", "body"], "A._two": ["(self)", "other"], "B._three": ["(self, x)", "body"]}
    assert next_keras.changes(here, there, {"_one", "_two", "_three", "_four"}) == {
        "A._two": "another body",
        "B._three": "takes (self, x), took (self)",
        "B._four": "gone",
    }
    assert next_keras.changes(here, there, {"_one"}) == {}
