"""Changes that are made to Horovod's scripts before they run here, each with its reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Change:
    """A regular expression with its replacement, line by line if `^` and `$` are used, and the reason for it."""

    pattern: str
    replacement: str
    reason: str

    def apply(self, text: str) -> tuple[str, int]:
        """The changed text, and the number of replacements."""
        return re.subn(self.pattern, self.replacement, text, flags=re.MULTILINE)


IMPORT = Change(
    r"^([ \t]*)import horovod\.(?:tensorflow\.keras|tensorflow|keras) as (\w+)$",
    r"\1import hvd_sparse as \2",
    "The one change that every script needs: the import line.",
)

SESSION = "TensorFlow 2 has no sessions."
LEGACY = "Keras 3 has it under `tensorflow.keras` only."
LAST_NAME = "Keras 3 has dropped the old name."

# For examples and tests alike; a change whose pattern is not found has no effect and is not listed.
DROPPED = (
    Change(r"^[ \t]*if hasattr\(tf, 'ConfigProto'\):\n(?:[ \t]+(?:self\.)?config.*\n)+", "", SESSION),
    Change(r"^[ \t]*(?:self\.)?config(?: = tf\.ConfigProto\(\)|\.gpu_options\.\w+ = .*)\n", "", SESSION),
    Change(r"^[ \t]*K\.set_session\(.*\)\n", "", SESSION),
    Change(r"\blr=", "learning_rate=", LAST_NAME),
    Change(r"\b(opt|optimizer)\.lr\b", r"\1.learning_rate", LAST_NAME),
    Change(r"\b(\w*opt\w*)\.variables\(\)", r"\1.variables", "`variables` of a Keras 3 optimizer is a property."),
    Change(r"^from keras\.preprocessing", "from tensorflow.keras.preprocessing", LEGACY),
    Change(r"(?<!tf\.)\bkeras\.losses\.MSE\b", '"mse"', LAST_NAME),
    Change(r"(?<!tf\.)\bkeras\.losses\.mean_squared_error\b", '"mse"', "Keras 3 lacks it under `tensorflow.keras`."),
    Change(r"\bkeras\.layers\.ThresholdedReLU\(0\.5\)", "keras.layers.ReLU(threshold=0.5)", LAST_NAME),
    Change(r"evaluate_generator\((\w+), (len\(\w+\)), workers=4\)", r"evaluate(\1, steps=\2)", LAST_NAME),
    Change(r"\bfit_generator\(", "fit(", LAST_NAME),
    Change(r"^[ \t]*workers=\d+,\n", "", "Keras 3's `fit` has no `workers`."),
    Change(r",\s*sample_weight_mode='temporal'", "", "Keras 3's `compile` has no `sample_weight_mode`."),
    Change(r"(checkpoint-\{epoch\})\.h5", r"\1.keras", "The format in which Keras 3 saves models."),
)


def shorter(pattern: str, replacement: str) -> Change:
    """A change that only makes a script run for a shorter time."""
    return Change(pattern, replacement, "Shorter: the script has no option for it.")


@dataclasses.dataclass(frozen=True)
class Applied:
    """A change that was made: the number of places, and the original text of one of them."""

    reason: str
    was: str
    became: str
    places: int


def apply(text: str, changes: Iterable[Change]) -> tuple[str, list[Applied]]:
    """The text with all changes made, and those that replaced something, in order."""
    applied = []
    for change in changes:
        found = re.search(change.pattern, text, flags=re.MULTILINE)
        if found is None:
            continue
        was, became = found.group(0).strip(), found.expand(change.replacement).strip()
        text, places = change.apply(text)
        applied.append(Applied(change.reason, was, became, places))
    return text, applied


def rewrite(text: str, further: Sequence[Change] = ()) -> tuple[str, list[Applied]]:
    """A script of Horovod as it runs here, with a new import line, removed APIs replaced, and the `further` changes."""
    return apply(text, [IMPORT, *DROPPED, *further])
