"""Training, sections 5.2 to 5.4: starts runs from recipes and trains them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
