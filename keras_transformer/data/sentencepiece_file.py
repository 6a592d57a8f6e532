"""The file of a SentencePiece model as a protocol buffer.

The package `sentencepiece` has generated classes for it, which need a newer
protobuf than TensorFlow allows. Here the message is described at run time, by
the fields that are used; protobuf keeps the others as they are.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from keras_transformer.data.cleaning import (
    RULES,
    compile_replacements,
    normalizer_of,
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types
# Values of TrainerSpec.model_type.
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
RULE_PREFIX = "keras_transformer_"
TAG = ">>.*?<<"  # begins a source: names the target language, or its kind

# Message: field: number, type. Numbers and names are those of SentencePiece's
# `sentencepiece_model.proto`.
_Field = descriptor_pb2.FieldDescriptorProto
FIELDS = {
    "SentencePiece": {
        "piece": (1, _Field.TYPE_STRING),
        "score": (2, _Field.TYPE_FLOAT),
        "type": (3, _Field.TYPE_INT32),
    },
    "TrainerSpec": {
        "model_type": (3, _Field.TYPE_INT32),
        "vocab_size": (4, _Field.TYPE_INT32),
        "unk_id": (40, _Field.TYPE_INT32),
        "bos_id": (41, _Field.TYPE_INT32),
        "eos_id": (42, _Field.TYPE_INT32),
        "pad_id": (43, _Field.TYPE_INT32),
        "unk_piece": (45, _Field.TYPE_STRING),
        "bos_piece": (46, _Field.TYPE_STRING),
        "eos_piece": (47, _Field.TYPE_STRING),
        "pad_piece": (48, _Field.TYPE_STRING),
    },
    "NormalizerSpec": {
        "name": (1, _Field.TYPE_STRING),
        "precompiled_charsmap": (2, _Field.TYPE_BYTES),
    },
    "ModelProto": {
        "pieces": (1, "SentencePiece"),
        "trainer_spec": (2, "TrainerSpec"),
        "normalizer_spec": (3, "NormalizerSpec"),
    },
}
# Defaults of fields that are not 0; files leave them out.
DEFAULTS = {
    ("SentencePiece", "type"): NORMAL,
    ("TrainerSpec", "model_type"): 1,  # unigram
}


def parse(model: bytes) -> Any:
    """Returns the message `ModelProto` of a model's bytes.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        return _model_class().FromString(model)
    except DecodeError as error:
        raise ValueError(
            f"A SentencePiece model is damaged. Received: {len(model)} bytes "
            "that cannot be parsed."
        ) from error


def with_rule(model: bytes, rule: str) -> bytes:
    """Returns a model that cleans text by one of the rules of `cleaning`."""
    proto = parse(model)
    proto.normalizer_spec.name = f"{RULE_PREFIX}{rule}"
    proto.normalizer_spec.precompiled_charsmap = precompiled_charsmap(rule)
    return proto.SerializeToString()


def rule_of(proto: Any) -> str | None:
    """Returns the rule that `with_rule` gave a model, `None` for others."""
    prefix, _, rule = proto.normalizer_spec.name.partition(RULE_PREFIX)
    return rule if not prefix and rule in RULES else None


def precompiled_charsmap(rule: str) -> bytes:
    """Returns a rule of `cleaning` as the file of a model has it."""
    return _charsmap_of(normalizer_of(rule))


def pieces_alone(model: bytes) -> bytes:
    """Returns a model without its rule for text, which decoding does not
    need, and which is larger than the pieces."""
    proto = parse(model)
    if proto.normalizer_spec.precompiled_charsmap:
        proto.normalizer_spec.precompiled_charsmap = _small_charsmap()
    return proto.SerializeToString()


@functools.cache
def _small_charsmap():
    # SentencePiece prints a line when a model without any is loaded.
    return _charsmap_of(compile_replacements({"\N{NO-BREAK SPACE}": " "}))


def _charsmap_of(normalizer):
    proto = parse(normalizer.serialized_model_proto())
    return proto.normalizer_spec.precompiled_charsmap


def tag_of(name: str) -> str:
    """Returns the tag of a language or a kind of source, such as `>>de<<`."""
    return f">>{name}<<"


def is_line_break(piece: str) -> bool:
    """Returns whether a piece ends a line, which only two characters do, as in
    `read_lines`."""
    return piece in ("<0x0A>", "<0x0D>") or bool({"\n", "\r"} & set(piece))


@functools.cache
def _model_class():
    package = "keras_transformer.sentencepiece"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            described = message.field.add(
                name=field, number=number, label=_Field.LABEL_OPTIONAL
            )
            if isinstance(kind, str):
                described.type = _Field.TYPE_MESSAGE
                described.type_name = f".{package}.{kind}"
            else:
                described.type = kind
            if (name, field) in DEFAULTS:
                described.default_value = str(DEFAULTS[name, field])
            if field == "pieces":
                described.label = _Field.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{package}.ModelProto")
    return message_factory.GetMessageClass(found)
