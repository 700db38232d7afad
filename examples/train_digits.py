"""Train a classifier on scikit-learn's digits (1,797 real 8×8 images) and write a checkpoint: the demo's workload.

It is an ordinary training script. All it takes from Tuneplane are two things any job gets: ``TUNEPLANE_OUTPUT_DIR``,
a directory on the storage root, and a SIGTERM when somebody stops the job: the epoch in hand is then finished, the
checkpoint written, and the script ends well within its grace.

``EPOCHS`` (default 20): how many passes over the training images; 0 trains until it is stopped.
``PAUSE_SECONDS`` (default 0): rest between epochs, to watch logs arrive.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import joblib  # type: ignore[import-not-found]
import numpy as np  # type: ignore[import-not-found]
from sklearn.datasets import load_digits  # type: ignore[import-not-found]
from sklearn.model_selection import train_test_split  # type: ignore[import-not-found]
from sklearn.neural_network import MLPClassifier  # type: ignore[import-not-found]

SEED = 7  # the same split and weights every time: the demo's accuracy is a fact, not a chance


class Stopper:
    """Remembers that a stop was asked for; the training loop looks between epochs."""

    asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True


def say(**facts: Any) -> None:
    """One JSON line a fact, at once: a log that nobody flushes helps nobody."""
    print(json.dumps(facts), flush=True)


def write_checkpoint(model: Any, epoch: int, accuracy: float, directory: Path) -> Path:
    """The model and a small report, each whole or not there."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / "model.joblib"
    joblib.dump(model, directory / "model.partial")
    (directory / "model.partial").replace(target)
    report = directory / "report.partial"
    report.write_text(json.dumps({"epoch": epoch, "accuracy": accuracy}) + "\n")
    report.replace(directory / "report.json")
    return target


def main() -> int:
    stopper = Stopper()
    signal.signal(signal.SIGTERM, stopper)
    signal.signal(signal.SIGINT, stopper)
    epochs = int(os.environ.get("EPOCHS", "20"))
    pause = float(os.environ.get("PAUSE_SECONDS", "0"))
    output = Path(os.environ.get("TUNEPLANE_OUTPUT_DIR", "."))
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.25, random_state=SEED, stratify=labels)
    train_images, test_images, train_labels, test_labels = split
    say(event="data", images=len(images), training=len(train_images), testing=len(test_images))
    model = MLPClassifier(hidden_layer_sizes=(64,), learning_rate_init=0.003, random_state=SEED)
    epoch, accuracy = 0, 0.0
    while not stopper.asked and (epochs == 0 or epoch < epochs):
        epoch += 1
        model.partial_fit(train_images, train_labels, classes=np.unique(labels))
        accuracy = float(model.score(test_images, test_labels))
        say(event="epoch", epoch=epoch, epochs=epochs, loss=round(float(model.loss_), 4), accuracy=round(accuracy, 4))
        time.sleep(pause)
    checkpoint = write_checkpoint(model, epoch, accuracy, output)
    say(event="stopped" if stopper.asked else "done", epoch=epoch, accuracy=round(accuracy, 4), checkpoint=str(checkpoint))
    return 0


if __name__ == "__main__":
    sys.exit(main())
