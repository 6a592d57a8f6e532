"""Metadata of the distribution; tools are configured in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"',
    (HERE / "keras_transformer/__init__.py").read_text(),
)[1]

TEXT = [
    "tensorflow>=2.21",
    "tensorflow-text>=2.21",
    "tensorflow-datasets>=4.9.10",
    "importlib_resources",  # imported by tensorflow-datasets, not required
    "sentencepiece>=0.2.1",
    "sacrebleu>=2.5",
    "pyarrow",  # Parquet and Zstandard files; tensorflow-datasets has it, too
    "tensorflow-serving-api>=2.21",  # the form of requests to warm up with
    "matplotlib",
    "tensorboard",  # its logs of a run
]

# All that training on JAX needs; a GPU needs `jax[cuda13]` besides.
JAX = [
    "jax",
    "sentencepiece>=0.2.1",
    "protobuf",
    "sacrebleu>=2.5",
    "pyarrow",
    "matplotlib",
    "tensorboard",
]
SERVE = ["uvicorn>=0.30", "prometheus_client", "sentencex>=1.0.32"]
RAY = ["ray[serve]>=2.60"]
MARIAN = ["safetensors", "huggingface_hub", "pyyaml"]
CTRANSLATE2 = ["ctranslate2>=4.5"]
FORMATS = [
    "tensorflow>=2.21",
    "tf2onnx>=1.17",
    "onnxruntime",
    "openvino",
    "scipy",  # imported by Keras' export to OpenVINO, not required
    "ai-edge-litert",
]
BEAM = ["apache-beam>=2.77"]
PYTEST = ["pytest>=8"]

setup(
    # `keras-transformer` is taken on the package index, by another project
    # whose import name is ours too.
    name="keras-transformer-paper",
    version=VERSION,
    description='The Transformer of "Attention Is All You Need" for Keras 3',
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The keras_transformer authors",
    keywords="transformer attention keras tensorflow translation",
    project_urls={
        "Paper": "https://arxiv.org/abs/1706.03762",
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.11,<3.14",
    packages=find_packages(
        include=["keras_transformer", "keras_transformer.*"]
    ),
    package_data={
        "keras_transformer": [
            "py.typed",
            "*.pyi",
            "*/*.pyi",
            "*/*/*.pyi",
            "export/*.txt",
            "export/*.md",
            "serve/page/*",
        ]
    },
    # 3.15: earlier versions lose the causal mask under dropout, among others.
    install_requires=["keras>=3.15", "lazy_loader>=0.4"],
    extras_require={
        "text": TEXT,
        "jax": JAX,  # training on JAX, without TensorFlow
        "ctranslate2": CTRANSLATE2,  # the export to that engine
        "formats": FORMATS,  # Keras' exports to ONNX, OpenVINO and LiteRT
        "beam": BEAM,  # corpora past one machine
        "marian": MARIAN,  # the import of Marian models, such as OPUS-MT
        "serve": SERVE,  # the server; grpcio comes with `text`
        "ray": RAY,  # replicas on several machines for the server
        "dev": [
            *TEXT,
            *SERVE,
            *BEAM,
            *PYTEST,
            "pytest-xdist",
            "hypothesis>=6",
            *MARIAN,
            *CTRANSLATE2,
            "ovmsclient",  # a client of servers that is not ours
            "jax",  # layers and training without TensorFlow are tested on it
            "ruff==0.17.5",
            "mypy>=2.4.1",
            "pre-commit",
        ],
        # The checks of the server's page in a browser.
        "page": [
            *TEXT,
            *SERVE,
            *PYTEST,
            "playwright",
            "axe-playwright-python",
        ],
        "docs": [
            *TEXT,
            *SERVE,
            *CTRANSLATE2,
            "sphinx",
            "sphinx-argparse",
            "jax",  # one guide runs on it
            "myst-nb",
            "jupytext",
            "furo",
            "latex2mathml",  # formulas without a script from a server
        ],
    },
    entry_points={
        "console_scripts": ["keras-transformer=keras_transformer.cli.main:run"]
    },
)
