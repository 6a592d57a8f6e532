from .config import TransformerConfig as TransformerConfig
from .language_model import LanguageModel as LanguageModel
from .layers import DecoderLayer as DecoderLayer
from .layers import EncoderLayer as EncoderLayer
from .layers import FeatureEmbedding as FeatureEmbedding
from .layers import FeedForward as FeedForward
from .layers import MultiHeadAttention as MultiHeadAttention
from .layers import PositionalEmbedding as PositionalEmbedding
from .layers import causal_mask as causal_mask
from .layers import padding_mask as padding_mask
from .layers import replace_attention as replace_attention
from .losses import LabelSmoothedCrossEntropy as LabelSmoothedCrossEntropy
from .losses import Perplexity as Perplexity
from .losses import TokenAccuracy as TokenAccuracy
from .losses import TokenLoss as TokenLoss
from .model import Transformer as Transformer
from .schedule import TransformerSchedule as TransformerSchedule
from .search.beam_search import beam_search as beam_search
from .search.blockwise_search import blockwise_search as blockwise_search
from .search.constraints import length_penalty as length_penalty
from .search.sampling import greedy_search as greedy_search
from .search.sampling import sample as sample
from .text_classifier import TextClassifier as TextClassifier

__version__: str
