"""SHA-256 of the files of releases, by which another or an incomplete file is noticed."""

from collections.abc import Mapping
from pathlib import Path

from tmft.errors import InputError
from tmft.io.files import digest

# Name of a file -> SHA-256 of its published content, which is checked whenever such a file is read. A name
# that two publishers use has two: msr_paraphrase_test.txt is Microsoft's file or SentEval's tokenized copy.
# fmt: off
SHA256 = {
    "sts-dev.csv":               "5d7e944d8b02734b07bfdb5df67db3420c64bed153fcaa1ba47ad03480cf4234",
    "sts-test.csv":              "affe45928a66ee5a708531233c95b7dacbbdc57f974f002a3d32ea0180cf816a",
    "stsb-de-train.csv":         "7a393283b1ec86d9919452bd793db2938831169b29f1584660c3d20e2ee2a53e",
    "stsb-de-dev.csv":           "40ddf84ce3d2dfb957e11687edea30e5567c542219998f906ee552cfd3ef6769",
    "stsb-de-test.csv":          "a92ce1015b201a342784ab7e34e024ceb0a0eeb479231fbadd05f756afb817fd",
    "stsb-es-train.csv":         "c0b1e809c1d5e51f95e90753656a371a5c92fff9f459ba01be20ce23f3ecc8b4",
    "stsb-es-dev.csv":           "7afece0711add2fb35bc65874bdf0fbbacbd5c784ebb3b926f4099f3989317d4",
    "stsb-es-test.csv":          "2b6f60e63f19806436cdfd8fe314f91144f97e403d1d50f20ff9ffcb323d5b2f",
    "sts-train.tsv":             "b5aaa7f957d6ff46f4b6834a8b0f024a9234a6eefe9289aed66746b4533da3b8",
    "sts-dev.tsv":               "d835b65b424401fbcce6be28a78159df8d61f5b19977ea7a0b83b8cb6105f393",
    "sts-test.tsv":              "13f83a3440d9db52d134eb40303ce021b03264aa338fbf2871c8786ce04d2105",
    "SICK_trial.txt":            "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
    "msr_paraphrase_test.txt":   "51a1f197d8786712d2f0d97700f5be653b7488a96cde00e158159350d23e3d90 "
                                 "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    "rg-65.csv":                 "d20733284912e2c3fe680344a8206438c94555c07329c1aed5bfdfe86bd527ee",
    "wordsim353-sim.csv":        "97444f54a2c22693f7f458c15278976c125360f33f2f6f8e1c6245123c2c14c7",
    "simlex999.csv":             "44d0b1dd5d57706acdb6cd37bd5afa4e091d7552671b9d6d4a0f4bdc321c1792",
    "simverb-3500.csv":          "cc481bf98ed80549e86dd87df972aa0de931ee7ba3634cdc2df361f23c7b67c9",
    "SimLex-999.txt":            "ca00ff8515a36cde32d13c2b83def23f5a167b67db93ebfcfb7dae039ba22c0b",
    "EN-RG-65.txt":              "c243f3a91c3f5d8cf67f21a67f6fb80bde8b6bb060851a6a48e6f2d68ec98c9f",
    "EN-SimVerb-3500.txt":       "9d84274e7ad029fd3cf69dd0516e9ade624bbef9bd4e2050f6cc1fa01471e0f5",
    "sem_text_rel_ranked.csv":   "2624f378bbd4793466c235720e6d6b386449c322f576667825bea3998dc66a9d",
    "agnewsdataraw-8000":        "9a3ecfb3d5daef1cdef2fa1cc23d1f1c23784220116c39072d6d8422f5781c06",
    "biomedical_true_text":      "a52cc072e35bfac1a971880ff3222239438cea24571b8910dd549f1831b34a04",
    "TS":                        "a2bd94663542b849477b0a2a95a23626a7c8af50d50978056159997ddd800065",
    "search_snippets_true_text": "e39dbcb5d956c2a34d1a68727c18b05646dfd4921857f7f61beccf6481e94787",
    "stackoverflow_true_text":   "e683a764d1c05828ee13828695fb273c3d61991b853af716da383061356e9ff5",
    "tweet-original-order.txt":  "bd63058a56d4b2ff35eca50db6fdbdf51d4dbc222e16604cbcaad813c2831479",
    "stsa.fine.train":           "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
    "stsa.fine.dev":             "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3",
    "stsa.fine.test":            "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
    "stsa.binary.train":         "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
    "stsa.binary.dev":           "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
    "stsa.binary.test":          "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
    "TREC.train":                "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    "TREC.test":                 "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
}
# The same of files under SentEval's names. SentEval's script gives these names to other texts, which it has
# tokenized again and written without non-ASCII characters: only downloads from our address are checked.
SHA256_OF_DOWNLOADS = {
    "rt-polarity.pos":           "2da124ec187a9d5a29c9f04e91c540e02baed5af8868f550a26bd6fd4dbf8bf0",
    "rt-polarity.neg":           "4ace77d558c3714723843f1d65b60c01e3417b208180f0728808d76ad0eeeaca",
    "custrev.pos":               "15eeb0b9424043bb3755488e2d8ed97bdaeba464a5c230f213bad075125d2192",
    "custrev.neg":               "8f29d7fa39f9862764b71f36b193f0674e0056287ffc5bf170edf6db42cc8f83",
    "subj.subjective":           "73a2dcf8dc3cbcc7f068a70ef9f021c86b2a8e4dac81566b7fd015b3e938f2c5",
    "subj.objective":            "5ddc9b44dc60d64d651347fcd7bdd489b0c70661e3f768215c16eea36f51204a",
    "mpqa.pos":                  "f4aaafdd63c439fd2d056149f3b5d200416dabb200a8b7d8f4bf9903981ff8a5",
    "mpqa.neg":                  "02e193d98c7715bc6200bb23dc6d2903482bd80c0432c53c3f3738c636df3f72",
}
# fmt: on


def check_sha256(path: Path, content: bytes, known: Mapping[str, str]) -> None:
    """Raise InputError if a file has a name in `known` and another content."""
    if path.name in known and digest(content) not in known[path.name]:
        raise InputError(
            f"{path} is not the published {path.name} (SHA-256), or is incomplete: download it again"
        )
