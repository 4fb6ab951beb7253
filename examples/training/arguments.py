"""The command line that all training scripts share, and the objects that are made from it."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import hvd_sparse as hvd
from examples.training import rates
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.keras.exchanging import exchange_of

OPTIMIZERS = ("sgd", "momentum", "lars", "lamb", "adam")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
NORMS_EVERY = 100  # steps between norms in TensorBoard
NOT_DECAYED = ("bias", "gamma", "beta")  # Keras variables without weight decay, as in LARS and LAMB
_STAGE = re.compile(r"(?:(\d+):)?([a-z0-9_]+)(?:@([0-9.e-]+)|\((.*)\))?")


def parser(description: str, batch: str = "samples", sized: bool = True, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the common arguments; a script adds its own.

    Args:
        description: the description for `--help`.
        batch: what `--batch-size` counts.
        sized: whether to add --epochs and --batch-size; otherwise the script sets them in the options for `begin`.
        defaults: defaults by argument name; epochs and batch_size have none unless given here.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    exchange = made.add_argument_group("exchange")
    exchange.add_argument(
        "--recipe",
        default="dense",
        help="a recipe of hvd.recipes, such as hitopk@0.001, sparcml_buckets(k=8, bits=4) or "
        "updates(hitopk, ahead=True); or a sequence by epoch, such as hitopk@0.001,13:torus2d",
    )
    exchange.add_argument("--density", type=float, default=0.01, help="of recipes without @ (default: %(default)s)")
    exchange.add_argument("--wire-dtype", help="data type for sending: float32, float16 or bfloat16")
    _add_optimizer(made.add_argument_group("optimizer"))
    run = made.add_argument_group("run")
    if sized:
        run.add_argument("--epochs", type=int)
        run.add_argument("--batch-size", type=int, help=f"{batch} per rank and step")
    run.add_argument("--precision", choices=PRECISIONS, default="float32")
    run.add_argument("--seed", type=int, default=0, help="for weights, sample order and augmentation")
    run.add_argument("--checkpoint-dir", help="for checkpoints; training resumes from the newest one")
    run.add_argument("--resume", action="store_true", help="fail if there is no checkpoint to resume from")
    run.add_argument("--tensorboard", metavar="DIR")
    run.add_argument(
        "--log", metavar="FILE", help="one JSON line per epoch (default: CHECKPOINT_DIR/log.jsonl, if given)"
    )
    run.add_argument(
        "--target", type=target, metavar="METRIC=VALUE", help="report when it is reached, such as top5=0.93"
    )
    made.set_defaults(**defaults)
    return made


def _add_optimizer(group: Any) -> None:
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="momentum")
    group.add_argument("--learning-rate", type=float, default=0.1, help="peak rate, for all ranks together")
    group.add_argument("--momentum", type=float, default=0.9)
    group.add_argument("--nesterov", action="store_true")
    group.add_argument("--weight-decay", type=float, default=0.0)
    group.add_argument("--trust-coefficient", type=float, default=0.001, help="of LARS")
    group.add_argument("--label-smoothing", type=float, default=0.0)
    group.add_argument("--warmup-epochs", type=float, default=0.0, help="linearly from --warmup-from to the peak rate")
    group.add_argument("--warmup-from", type=float, default=0.0, help="initial rate, as a share of the peak")
    group.add_argument("--schedule", choices=rates.DECAYS, default="cosine", help="decay after the warm-up")
    group.add_argument("--power", type=float, default=2.0, help="exponent of the polynomial decay")
    group.add_argument("--final-rate", type=float, default=0.0, help="final rate, as a share of the peak")


def begin(options: argparse.Namespace) -> None:
    """Starts Horovod, checks the arguments, and sets random seeds and precision.

    Every rank gets a seed of its own; the broadcast makes the variables equal.

    Raises:
        ValueError: if an argument is invalid.
    """
    if not options.epochs or options.epochs < 1:
        raise ValueError(f"Expected at least 1 epoch, got --epochs {options.epochs}.")
    if options.resume and not options.checkpoint_dir:
        raise ValueError("Expected --checkpoint-dir with --resume: training resumes from a checkpoint there.")
    check_recipe(options)
    hvd.init()
    saved = bool(options.checkpoint_dir) and any(Path(options.checkpoint_dir).glob("epoch-*"))
    if options.resume and not hvd.topology.world().gather_descriptions(saved, "training.saved")[0]:
        raise ValueError(f"--resume was given, but {options.checkpoint_dir} has no checkpoint: omit it to start anew.")
    keras.utils.set_random_seed(seed_of(options, hvd.rank()))
    keras.mixed_precision.set_global_policy(options.precision)


def seed_of(options: argparse.Namespace, rank: int) -> int:
    """The random seed of a rank."""
    return options.seed * 1_000 + rank


def recipe(options: argparse.Namespace, steps: int | None = None) -> Aggregator:
    """The recipe of `--recipe`, `--density` and `--wire-dtype`; raises ValueError as `recipe_of` does."""
    return recipe_of(options.recipe, options.density, options.wire_dtype, steps)


def check_recipe(options: argparse.Namespace) -> None:
    """Raises ValueError if `recipe` would, before the number of steps is known."""
    recipe(options, steps=1)


def recipe_of(text: str, density: float, wire_dtype: str | None = None, steps: int | None = None) -> Aggregator:
    """Parses a recipe; `--help` explains the syntax under `--recipe`.

    Args:
        text: a recipe, or several in sequence by epoch.
        density: for recipes that take one and do not specify it.
        wire_dtype: likewise; None leaves the choice to the recipe.
        steps: steps of the whole training, likewise.

    Raises:
        ValueError: if there is no such recipe or argument, or the stages do not ascend from epoch 0.
    """
    asked = {"density": density, "wire_dtype": wire_dtype, "steps": steps}
    defaults = {name: value for name, value in asked.items() if value is not None}
    stages = [_stage(each.strip(), defaults) for each in _split(text)]
    return stages[0][1] if len(stages) == 1 and stages[0][0] == 0 else hvd.recipes.schedule(stages)


def _split(text: str) -> list[str]:
    """Splits at the commas outside parentheses."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _stage(text: str, defaults: dict[str, Any]) -> tuple[int, Aggregator]:
    """Parses EPOCH:NAME@DENSITY or EPOCH:NAME(ARGUMENTS); only the name is required."""
    matched = _STAGE.fullmatch(text)
    maker = getattr(hvd.recipes, matched[2], None) if matched and not matched[2].startswith("_") else None
    if matched is None or not inspect.isfunction(maker) or matched[2] == "schedule":
        raise ValueError(
            "Expected a recipe of hvd.recipes, such as hitopk, hitopk@0.001, sparcml_buckets(k=8, bits=4), "
            f"updates(hitopk, ahead=True) or hitopk@0.001,13:torus2d, got {text!r}."
        )
    taken = inspect.signature(maker).parameters
    if matched[3] and "density" not in taken:
        raise ValueError(f"Expected no density for the recipe {matched[2]}, which takes none, got {text!r}.")
    given = {"density": float(matched[3])} if matched[3] else _given(matched[4] or "", list(taken), defaults, text)
    unknown = [name for name in given if name not in taken]
    if unknown:
        raise ValueError(f"Expected arguments of {matched[2]} ({', '.join(taken)}), got {unknown[0]} in {text!r}.")
    usual = {name: value for name, value in defaults.items() if name in taken}
    return int(matched[1] or 0), maker(**{**usual, **given})


def _given(arguments: str, taken: list[str], defaults: dict[str, Any], text: str) -> dict[str, Any]:
    """Parses NAME=LITERAL, NAME=LITERAL; a recipe that wraps another takes that one first, or as `recipe`."""
    try:
        call: Any = ast.parse(f"recipe({arguments})", mode="eval").body
        nodes = {str(each.arg): each.value for each in call.keywords}
        if call.args:
            (nodes["recipe"],) = call.args if "recipe" in taken else ()
        inner = nodes.pop("recipe") if "recipe" in taken and "recipe" in nodes else None
        given = {name: ast.literal_eval(node) for name, node in nodes.items()}
    except (AttributeError, SyntaxError, ValueError):
        raise ValueError(f"Expected arguments by name, as in sparcml_buckets(k=8, bits=4), got {text!r}.") from None
    return given if inner is None else {"recipe": _stage(ast.unparse(inner), defaults)[1], **given}


def optimizer(
    options: argparse.Namespace,
    rate: float | keras.optimizers.schedules.LearningRateSchedule,
    steps: int | None = None,
    **exchange: Any,
) -> keras.optimizers.Optimizer:
    """The distributed optimizer that the options describe.

    Args:
        options: the options of `parser`.
        rate: a learning rate, or a schedule made by `rates.make`.
        steps: steps of the whole training, for recipes that depend on it.
        exchange: further arguments of `hvd.DistributedOptimizer`.

    Raises:
        ValueError: if the recipe is invalid.
    """
    if options.tensorboard:  # must be set before the first exchange, which may be that of `agree`
        exchange.setdefault("telemetry", hvd.Telemetry(norms_every=NORMS_EVERY))
    return hvd.DistributedOptimizer(_inner(options, rate), aggregator=recipe(options, steps), **exchange)


def _inner(options: argparse.Namespace, rate: Any) -> keras.optimizers.Optimizer:
    decay = options.weight_decay
    if options.optimizer in ("lars", "lamb"):
        import lars  # has its own compiled code, which the other optimizers do not need

        if options.optimizer == "lamb":
            return lars.LAMB(rate, weight_decay=decay)
        return lars.LARS(
            rate,
            momentum=options.momentum,
            weight_decay=decay,
            trust_coefficient=options.trust_coefficient,
            nesterov=options.nesterov,
        )
    if options.optimizer == "adam":
        made = keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, weight_decay=decay or None)
    else:
        momentum = options.momentum if options.optimizer == "momentum" else 0.0
        made = keras.optimizers.SGD(rate, momentum, options.nesterov and momentum > 0, weight_decay=decay or None)
    made.exclude_from_weight_decay(var_names=list(NOT_DECAYED))
    return made


def agree(model: keras.Model, epoch: int = 0) -> None:
    """Builds a compiled model's optimizer and makes it exchange zeros once; a collective.

    In this exchange the ranks agree on their buckets. Otherwise they would do so while the first step is traced, and as
    this creates variables, TensorFlow would trace it again, which takes as long once more.

    Args:
        model: compiled with the result of `optimizer`; all its gradients are dense.
        epoch: the epoch in which training begins, for recipes that change by epoch.
    """
    agree_on(model.optimizer, model.trainable_variables, epoch)


def agree_on(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], epoch: int = 0) -> None:
    """`agree` for a distributed optimizer of these variables."""
    if not optimizer.built:
        optimizer.build(variables)
    exchange = exchange_of(optimizer)
    exchange.set_epoch(epoch)
    exchange([keras.ops.zeros_like(variable) for variable in variables], variables)


def target(text: str) -> tuple[str, float]:
    """Parses METRIC=VALUE.

    Raises:
        argparse.ArgumentTypeError: if the text does not have this form.
    """
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Expected METRIC=VALUE, such as top5=0.93, got {text!r}.") from None


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line, or `arguments`; an invalid argument ends the script with an error message."""
    options = made.parse_args(arguments)
    try:
        check_recipe(options)
    except ValueError as error:
        made.error(str(error))
    return options
