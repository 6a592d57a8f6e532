"""The built-in corpus as a TensorFlow Datasets builder: no network needed."""

import tensorflow_datasets as tfds

from keras_transformer.data.builtin.phrases import SIZES, pairs_of_split


class KerasTransformerPhrases(tfds.core.GeneratorBasedBuilder):
    """Builds English and German sentences about numbers, dates and prices."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First grammar."}

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.Translation(languages=("en", "de")),
            supervised_keys=("en", "de"),
        )

    def _split_generators(self, dl_manager):
        return {split: self._pairs(split) for split in SIZES}

    def _generate_examples(self, split):
        return self._pairs(split)

    def _pairs(self, split):
        pairs = pairs_of_split(split, SIZES[split])
        for i, (english, german) in enumerate(pairs):
            yield i, {"en": english, "de": german}
