"""Other programs: their models, engines and clusters.

Nothing outside this package imports it. The command finds an integration by the
tables below, whose functions "module:name" are imported when they are needed:

- commands: a function of a `CommandLine` that adds a command, or an option to
  one. It is called before the command reads its arguments, so its module
  imports the standard library and light modules of this package alone.
- export formats: a function `export(run, path, **options)` that writes a run
  into a new folder and returns its path. It takes those of the options
  `settings`, `dtype`, `shortlist` and `draft_tokens` that the format has; the
  command refuses the others.
- engines of the server: a dataclass of settings, whose fields are options of
  `serve`, and a function of such settings that returns a context manager of the
  `start_engine` of `keras_transformer.serve.server.serve`. The module of the
  settings is imported before the command reads its arguments, too. An engine
  without settings has `None`, and its function no argument.
- translators of `translate --engine`: a class that takes a folder, with the
  methods and attributes of `SavedTranslator` that the command uses for text.
"""

COMMANDS = (
    "keras_transformer.integrations.commands:add_import",
    "keras_transformer.integrations.commands:add_runner",
)
EXPORT_FORMATS = {
    "ctranslate2": "keras_transformer.integrations.ctranslate2:export",
    "marian": "keras_transformer.integrations.marian.exporter:export",
}
ENGINES: dict[str, tuple[str | None, str]] = {
    "ray": (
        "keras_transformer.integrations.ray:RaySettings",
        "keras_transformer.integrations.ray:running_ray",
    ),
    "ctranslate2": (
        None,
        "keras_transformer.integrations.ctranslate2_engine:running_ctranslate2",
    ),
}
TRANSLATORS = {
    "ctranslate2": "keras_transformer.integrations.ctranslate2_engine:"
    "CTranslate2Translator",
}
# The extra that brings a package.
EXTRAS = {
    "apache_beam": "beam",
    "ctranslate2": "ctranslate2",
    "huggingface_hub": "marian",
    "ray": "ray",
    "safetensors": "marian",
    "yaml": "marian",
}
