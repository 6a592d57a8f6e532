from .corpus import SentencePairs as SentencePairs
from .corpus import load_pairs as load_pairs
from .options import Preparation as Preparation
from .preparation import prepare as prepare
from .prepared_corpus import PreparedCorpus as PreparedCorpus
from .text_files import read_lines as read_lines
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import train_tokenizer as train_tokenizer
