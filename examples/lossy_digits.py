"""Averages models over a network that loses messages: how many have to arrive?

    horovodrun -np 4 python -m examples.lossy_digits --arrival 0.9
    horovodrun -np 4 python -m examples.lossy_digits --arrival 0.9 --gradients
    horovodrun -np 4 python -m examples.lossy_digits --datagrams

Each block of each message is lost independently, drawn from a seed; the ranks' real network loses nothing. With
`--gradients`, gradients are averaged in the same way, in place of models. With `--datagrams`, models travel over UDP,
and only what the network loses is lost.
"""

import argparse

import keras

import hvd_sparse as hvd
from examples import digits


def main() -> None:
    """Trains on the handwritten digits; prints the share of lost blocks and the test accuracy of the averaged model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--arrival", type=float, default=0.9, help="share of blocks that arrive, in [0, 1]")
    parser.add_argument("--every", type=int, default=1, help="steps of each rank between averaging rounds")
    parser.add_argument("--gradients", action="store_true", help="average gradients instead of models")
    parser.add_argument("--datagrams", action="store_true", help="send by UDP; the network decides what arrives")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    data = digits.load(seed=0)
    images, labels = digits.share(data, hvd.rank(), hvd.size())

    by_chance = hvd.averaging.Lossy(1.0 - options.arrival, seed=0)
    transport = hvd.averaging.Datagrams() if options.datagrams else by_chance
    optimizer = keras.optimizers.SGD(0.1)
    telemetry = hvd.averaging.Telemetry()
    if options.gradients:
        optimizer = hvd.averaging.GradientAveraging(optimizer, transport)
    else:
        optimizer = hvd.averaging.ModelAveraging(optimizer, transport, every=options.every, telemetry=telemetry)
    model = digits.make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    if not options.gradients:
        callbacks.append(hvd.callbacks.MeanOfModelsCallback())
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(images, labels, batch_size=16, epochs=options.epochs, callbacks=callbacks, verbose=verbose)

    _, accuracy = model.evaluate(data.test_images, data.test_labels, verbose=0)
    if hvd.rank() == 0:
        whose = "of rank 0's model" if options.gradients else "of the mean of models"
        lost = telemetry.read().get("total_lost", {})
        print("".join(f"lost in the {phase.replace('_', '-')} {share:.1%}\n" for phase, share in lost.items()), end="")
        print(f"test accuracy {accuracy:.4f} {whose}")


if __name__ == "__main__":
    main()
