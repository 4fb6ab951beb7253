"""ResNet-50 on image folders, with warm-up, a stepped learning rate and resume: Horovod's keras_imagenet_resnet50.py.

    horovodrun -np 2 python -m examples.from_horovod.keras_imagenet_resnet50

`# <-` marks lines that differ from a script for Horovod. Without --train-dir it writes a few photographs to a folder of
its own, and uses small images, so that it ends within a minute.
"""

import argparse
import pathlib
import tempfile

import keras
import tensorflow as tf

import hvd_sparse as hvd  # <- was: import horovod.keras as hvd
from examples import photographs
from examples.from_horovod.models import model_by_name


def arguments() -> argparse.Namespace:
    """The options of Horovod's script, and of the model and the image size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-dir", type=pathlib.Path, help="directory with one folder of images per class")
    parser.add_argument("--val-dir", type=pathlib.Path, help="same layout, for validation")
    parser.add_argument("--log-dir", type=pathlib.Path, help="for TensorBoard (default: none)")
    parser.add_argument("--checkpoint-format", help="such as ./checkpoint-{epoch}.keras (default: none)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--val-batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="learning rate for one rank")
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.00005, help="weight decay")
    parser.add_argument("--model", default="ResNet50", help="any model of keras.applications, or LeNet")
    parser.add_argument("--image-size", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    """Trains on the images of the command line, or on a few that each rank writes for itself."""
    options = arguments()
    with tempfile.TemporaryDirectory() as own:
        if options.train_dir is None:
            written = photographs.write_halves(pathlib.Path(own) / "photographs", 64, 32, options.image_size)
            options.train_dir, options.val_dir = written / "train", written / "val"
        train_on(options)


def train_on(options: argparse.Namespace) -> None:
    """Trains, from the newest checkpoint if there is one; prints the loss and accuracy of all ranks."""
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # <- was: a session's configuration
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    verbose = 2 if hvd.rank() == 0 else 0

    train = batches(options.train_dir, options.batch_size, options.image_size).map(
        distort
    )  # <- was: ImageDataGenerator
    validation = batches(options.val_dir, options.val_batch_size, options.image_size)
    steps, validation_steps = len(train), len(validation)

    # Rank 0 holds the checkpoints: it chooses the one to resume from, and the broadcast gives its values to all others.
    resume_from_epoch = int(hvd.broadcast(newest_checkpoint(options), 0, name="resume_from_epoch"))
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    initial_lr = options.base_lr * hvd.size()
    if resume_from_epoch > 0 and hvd.rank() == 0:
        model = hvd.load_model(options.checkpoint_format.format(epoch=resume_from_epoch), compression=compression)
    else:
        classes = len([path for path in options.train_dir.iterdir() if path.is_dir()])
        model = model_by_name(options.model, options.image_size, classes)
        optimizer = keras.optimizers.SGD(
            learning_rate=initial_lr,  # <- was: lr=initial_lr
            momentum=options.momentum,
            weight_decay=options.wd,  # <- was: a regularizer in each layer
        )
        optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
        model.compile(
            optimizer, "sparse_categorical_crossentropy", metrics=["accuracy", "sparse_top_k_categorical_accuracy"]
        )

    schedule = hvd.callbacks.LearningRateScheduleCallback
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs=options.warmup_epochs, verbose=1),
        schedule(initial_lr, multiplier=1.0, start_epoch=options.warmup_epochs, end_epoch=30),
        schedule(initial_lr, multiplier=1e-1, start_epoch=30, end_epoch=60),
        schedule(initial_lr, multiplier=1e-2, start_epoch=60, end_epoch=80),
        schedule(initial_lr, multiplier=1e-3, start_epoch=80),
    ]
    if hvd.rank() == 0 and options.checkpoint_format:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint_format))
    if hvd.rank() == 0 and options.log_dir:
        callbacks.append(keras.callbacks.TensorBoard(options.log_dir))

    model.fit(  # <- was: fit_generator
        train.repeat(),
        steps_per_epoch=max(1, steps // hvd.size()),
        epochs=options.epochs,
        initial_epoch=resume_from_epoch,
        callbacks=callbacks,
        validation_data=validation.repeat(),
        validation_steps=max(1, 3 * validation_steps // hvd.size()),
        verbose=verbose,
    )
    score = hvd.allreduce(model.evaluate(validation, verbose=0))  # <- was: evaluate_generator
    if hvd.rank() == 0:
        print(f"epochs {resume_from_epoch} to {options.epochs}: test loss {score[0]:.4f}, test accuracy {score[1]:.4f}")


def batches(directory: pathlib.Path, batch_size: int, side: int) -> tf.data.Dataset:
    """Shuffled batches of the images in a folder, scaled to -1 to 1, in a different order on each rank."""
    data = keras.utils.image_dataset_from_directory(
        directory, image_size=(side, side), batch_size=batch_size, seed=hvd.rank(), verbose=False
    )
    return data.map(lambda images, labels: (images / 127.5 - 1.0, labels))


def distort(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mirrors half of the images."""
    return tf.image.random_flip_left_right(images), labels


def newest_checkpoint(options: argparse.Namespace) -> int:
    """The last epoch with a checkpoint on this rank's disk; 0 if there is none."""
    if not options.checkpoint_format:
        return 0
    found = (
        epoch
        for epoch in range(options.epochs, 0, -1)
        if pathlib.Path(options.checkpoint_format.format(epoch=epoch)).exists()
    )
    return next(found, 0)


if __name__ == "__main__":
    main()
