/* Sentence embeddings in plain JavaScript: the tokens and the forward pass of a small BERT or ELECTRA.

     const encoder = await Encoder.load(readFile);       readFile(path): a promise of the bytes of a file
     const embedding = encoder.encode("A man plays.");   a Float32Array; the cosine compares two of them

   It reads a folder that `python -m tmft export MODEL FOLDER --format compact --dtype int4` has written, and
   computes the same as encode.py in that folder, which is the same page in numpy. The order of this file is
   that of the computation:

     text -> tokens -> ids -> hidden states of each layer -> one vector -> embedding

   A matrix is a Float32Array that holds its rows one after the other: element (r, c) of a matrix with C
   columns is at r * C + c. Letters in this file: T tokens, D hidden size, H heads, A = D / H,
   E size of the embeddings of tokens. */

"use strict";

class Encoder {
  /** Read all files of a folder. Throws an Error, in one line, if one is damaged. */
  static async load(readFile) {
    const readJson = async (path) => parseJson(await readFile(path), path);
    const readTensors = async (path) => readWeights(await readFile(path), path);
    const [config, modules, settings, limits, tokenizer, weights] = await Promise.all([
      readJson("config.json"),
      readJson("modules.json"),
      readJson("config_sentence_transformers.json"),
      readJson("sentence_bert_config.json"),
      readJson("tokenizer.json"),
      readTensors("model.safetensors"),
    ]);
    const steps = []; // what follows the last layer: {type, config, weights}
    for (const module of modules) {
      const type = module.type.split(".").at(-1);
      if (type === "Transformer") continue;
      const step = { type, config: await readJson(`${module.path}/config.json`) };
      if (type === "Dense") step.weights = await readTensors(`${module.path}/model.safetensors`);
      steps.push(step);
    }
    return new Encoder(config, steps, settings, new WordPiece(tokenizer, limits.max_seq_length), weights);
  }

  constructor(config, steps, settings, tokenizer, weights) {
    if (!["bert", "electra"].includes(config.model_type)) {
      throw new Error(`config.json has the model_type ${config.model_type}: this page reads bert and electra`);
    }
    const D = (this.size = config.hidden_size);
    const E = (this.embeddingSize = config.embedding_size ?? D); // narrower in some ELECTRAs
    const inner = config.intermediate_size;
    this.heads = config.num_attention_heads;
    this.epsilon = config.layer_norm_eps;
    this.activation = choose(ACTIVATIONS, config.hidden_act);
    this.tokenizer = tokenizer;
    this.prompt = settings.prompts?.[settings.default_prompt_name] ?? ""; // stands before each text

    // Every weight is asked for with its shape. A weight that is missing or misshapen is noticed here.
    const linear = (name, outputs, inputs) => ({
      weight: weights.get(`${name}.weight`, [outputs, inputs]),
      bias: weights.get(`${name}.bias`, [outputs]),
    });
    const norm = (name, size = D) => ({
      scale: weights.get(`${name}.weight`, [size]),
      shift: weights.get(`${name}.bias`, [size]),
    });
    this.words = weights.get("embeddings.word_embeddings.weight", [config.vocab_size, E]);
    this.positions = weights.get("embeddings.position_embeddings.weight", [config.max_position_embeddings, E]);
    this.types = weights.get("embeddings.token_type_embeddings.weight", [config.type_vocab_size, E]);
    this.embeddingNorm = norm("embeddings.LayerNorm", E);
    if (E !== D) this.project = linear("embeddings_project", D, E);
    this.layers = Array.from({ length: config.num_hidden_layers }, (_, n) => ({
      query: linear(`encoder.layer.${n}.attention.self.query`, D, D),
      key: linear(`encoder.layer.${n}.attention.self.key`, D, D),
      value: linear(`encoder.layer.${n}.attention.self.value`, D, D),
      output: linear(`encoder.layer.${n}.attention.output.dense`, D, D),
      attentionNorm: norm(`encoder.layer.${n}.attention.output.LayerNorm`),
      up: linear(`encoder.layer.${n}.intermediate.dense`, inner, D),
      down: linear(`encoder.layer.${n}.output.dense`, D, inner),
      norm: norm(`encoder.layer.${n}.output.LayerNorm`),
    }));
    if (D % 4 || inner % 4 || D % this.heads) throw new Error("config.json has widths that are no multiples of 4");
    if (tokenizer.largestId >= config.vocab_size || tokenizer.maxLength > config.max_position_embeddings) {
      throw new Error("tokenizer.json and sentence_bert_config.json do not fit config.json");
    }
    this.steps = steps.map((step) => headModule(step));
    this.dimensions = settings.truncate_dim ?? undefined;
  }

  /** text -> its embedding */
  encode(text) {
    return this.embed(this.tokenizer.encode(this.prompt + text).ids);
  }

  /** T token ids -> the embedding of the sentence */
  embed(ids) {
    let vector = this.hiddenStates(ids); // (T, D), which the pooling makes (D)
    for (const step of this.steps) vector = step(vector, this.size);
    return vector.slice(0, this.dimensions);
  }

  /** T token ids -> the output of the last layer, (T, D) */
  hiddenStates(ids) {
    const [T, E] = [ids.length, this.embeddingSize];
    let hidden = new Float32Array(T * E);
    for (let t = 0; t < T; t++) {
      for (let e = 0; e < E; e++) {
        hidden[t * E + e] = this.words[ids[t] * E + e] + this.positions[t * E + e] + this.types[e];
      }
    }
    hidden = layerNorm(hidden, this.embeddingNorm, this.epsilon); // (T, E)
    if (this.project) hidden = applyLinear(this.project, hidden); // (T, D)
    for (const layer of this.layers) {
      const attended = applyLinear(layer.output, this.attention(hidden, layer)); // (T, D)
      hidden = layerNorm(add(hidden, attended), layer.attentionNorm, this.epsilon);
      const inner = applyLinear(layer.up, hidden).map(this.activation); // (T, intermediate size), 4 D in BERT
      hidden = layerNorm(add(hidden, applyLinear(layer.down, inner)), layer.norm, this.epsilon); // (T, D)
    }
    return hidden;
  }

  /** Multi-head self-attention: softmax(Q K^T / sqrt(A)) V, the heads side by side. (T, D) -> (T, D) */
  attention(hidden, layer) {
    const [query, key, value] = [layer.query, layer.key, layer.value].map((one) => applyLinear(one, hidden)); // (T, D)
    const [D, A, T] = [this.size, this.size / this.heads, hidden.length / this.size];
    const context = new Float32Array(T * D);
    const scores = new Float32Array(T); // of one token, for each token that it looks at
    for (let head = 0; head < D; head += A) { // the columns head ... head + A belong to this head
      for (let t = 0; t < T; t++) {
        let largest = -Infinity;
        for (let s = 0; s < T; s++) {
          let score = 0;
          for (let a = head; a < head + A; a++) score += query[t * D + a] * key[s * D + a];
          scores[s] = score / Math.sqrt(A);
          largest = Math.max(largest, scores[s]);
        }
        let sum = 0;
        for (let s = 0; s < T; s++) sum += scores[s] = Math.exp(scores[s] - largest);
        for (let s = 0; s < T; s++) {
          const weight = scores[s] / sum; // how much token t looks at token s
          for (let a = head; a < head + A; a++) context[t * D + a] += weight * value[s * D + a];
        }
      }
    }
    return context;
  }
}

// ------------------------------------------------------------------------------------------ what a layer is made of

/** x W^T + b: (T, inputs) -> (T, outputs). Nearly all of the time is spent in these loops.

    Four outputs are computed side by side: each number of x is read once for all of them, and a processor adds to
    four sums at once, where one sum would have to wait for itself. This takes less than half of the time. */
function applyLinear({ weight, bias }, x) {
  const outputs = bias.length; // a multiple of 4
  const inputs = weight.length / outputs;
  const T = x.length / inputs;
  const y = new Float32Array(T * outputs);
  for (let t = 0; t < T; t++) {
    for (let o = 0; o < outputs; o += 4) {
      let [sum0, sum1, sum2, sum3] = [bias[o], bias[o + 1], bias[o + 2], bias[o + 3]];
      for (let i = 0; i < inputs; i++) {
        const input = x[t * inputs + i];
        sum0 += input * weight[o * inputs + i];
        sum1 += input * weight[(o + 1) * inputs + i];
        sum2 += input * weight[(o + 2) * inputs + i];
        sum3 += input * weight[(o + 3) * inputs + i];
      }
      y.set([sum0, sum1, sum2, sum3], t * outputs + o);
    }
  }
  return y;
}

/** Each row with mean 0 and variance 1, then a learned scale and shift: (T, D) -> (T, D) */
function layerNorm(x, { scale, shift }, epsilon) {
  const D = scale.length;
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += D) {
    let mean = 0;
    for (let d = 0; d < D; d++) mean += x[start + d] / D;
    let variance = 0;
    for (let d = 0; d < D; d++) variance += (x[start + d] - mean) ** 2 / D;
    const deviation = Math.sqrt(variance + epsilon);
    for (let d = 0; d < D; d++) y[start + d] = ((x[start + d] - mean) / deviation) * scale[d] + shift[d];
  }
  return y;
}

function add(x, y) {
  return x.map((value, n) => value + y[n]);
}

/** The error function, with an error of at most 1.5e-7 (Abramowitz and Stegun 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const polynomial =
    ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - polynomial * Math.exp(-x * x));
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  relu: (x) => Math.max(x, 0),
  Tanh: Math.tanh,
  Identity: (x) => x,
};

/** The function of a module that follows the last layer, as modules.json lists them: x -> (dimensions) */
function headModule({ type, config, weights }) {
  if (type === "Pooling") {
    return config.pooling_mode_cls_token ? (hidden, D) => hidden.slice(0, D) : meanOfRows; // (T, D) -> (D)
  }
  if (type === "Dense") {
    const activation = choose(ACTIVATIONS, config.activation_function.split(".").at(-1));
    const weight = weights.get("linear.weight", [config.out_features, config.in_features]);
    const zeros = new Float32Array(config.out_features);
    const bias = config.bias ? weights.get("linear.bias", [config.out_features]) : zeros;
    return (vector) => {
      if (vector.length !== config.in_features) throw new Error("a Dense module does not fit the one before it");
      return applyLinear({ weight, bias }, vector).map(activation);
    };
  }
  if (type === "Normalize") {
    return (vector) => {
      const length = Math.max(Math.hypot(...vector), 1e-12);
      return vector.map((value) => value / length);
    };
  }
  throw new Error(`modules.json has a module ${type}, which this page cannot compute`);
}

/** (T, D) -> (D) */
function meanOfRows(x, D) {
  const mean = new Float32Array(D);
  for (let n = 0; n < x.length; n++) mean[n % D] += x[n] / (x.length / D);
  return mean;
}

// ------------------------------------------------------------------------------------------------- text to token ids

// Letters that Chinese and Japanese text does not separate by spaces: each is a word.
const CJK =
  /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;
const PUNCTUATION = /([!-/:-@[-`{-~\p{P}])/u; // every sign of ASCII counts, "$" and "^", too

/** BERT's tokenizer, as the library tokenizers computes it from tokenizer.json.

    Its table of characters is older (Unicode 8): some marks and punctuation of scripts that Unicode added
    later, such as Adlam, are an unknown word there and are removed here. No token of ours has any of them. */
class WordPiece {
  constructor(content, maxLength) {
    const { normalizer, pre_tokenizer, post_processor, model, added_tokens } = content;
    const types = [normalizer, pre_tokenizer, post_processor, model].map((part) => part?.type);
    if (types.join() !== "BertNormalizer,BertPreTokenizer,TemplateProcessing,WordPiece") {
      throw new Error(`tokenizer.json is ${types.join(", ")}: this page reads the tokenizers of BERT`);
    }
    this.vocabulary = new Map(Object.entries(model.vocab));
    this.tokens = [...this.vocabulary.keys()];
    this.largestId = Math.max(...this.vocabulary.values());
    this.normalizer = normalizer;
    this.model = model;
    this.maxLength = maxLength;
    this.special = new Map(added_tokens.map((token) => [token.content, token.id]));
    // A special token that stands in the text, such as "[MASK]", is that token and not three words.
    const alternatives = [...this.special.keys()].map((token) => token.replace(/[^\w]/g, "\\$&"));
    this.specialPattern = new RegExp(`(${alternatives.join("|")})`);
    // The template: [CLS] before the text, [SEP] after it.
    const ids = post_processor.single.map((part) => post_processor.special_tokens[part.SpecialToken?.id]?.ids ?? null);
    this.before = ids.slice(0, ids.indexOf(null)).flat();
    this.after = ids.slice(ids.indexOf(null) + 1).flat();
  }

  /** text -> {ids, isCut}: the ids of at most maxLength tokens, and whether the end of the text is missing */
  encode(text) {
    const ids = [];
    for (const part of text.split(this.specialPattern)) {
      if (this.special.has(part)) ids.push(this.special.get(part));
      else for (const word of this.words(part)) ids.push(...this.pieces(word));
    }
    const room = this.maxLength - this.before.length - this.after.length;
    return { ids: [...this.before, ...ids.slice(0, room), ...this.after], isCut: ids.length > room };
  }

  /** text -> its words, and its punctuation one by one: lower-cased, without accents */
  words(text) {
    const { clean_text, handle_chinese_chars, strip_accents, lowercase } = this.normalizer;
    let s = text.replace(/\p{Cs}/gu, ""); // half of a character that has two: no text
    if (clean_text) {
      // Controls and the like are removed, but tabs and line ends are spaces.
      s = s.replace(/[\t\n\r]/g, " ").replace(/[\uFFFD\p{Cc}\p{Cf}\p{Co}]/gu, "").replace(/\p{White_Space}/gu, " ");
    }
    if (handle_chinese_chars) s = s.replace(CJK, " $& ");
    if (strip_accents ?? lowercase) s = s.normalize("NFD").replace(/\p{Mn}/gu, ""); // é = e + accent -> e
    if (lowercase) s = Array.from(s, (letter) => letter.toLowerCase()).join(""); // one by one: Σ is never ς
    return s.split(/\p{White_Space}/u).flatMap((word) => word.split(PUNCTUATION)).filter((word) => word !== "");
  }

  /** One word -> the ids of the longest tokens that it begins with, each time: "playing" -> "play", "##ing" */
  pieces(word) {
    const unknown = [this.vocabulary.get(this.model.unk_token)];
    const letters = Array.from(word);
    if (letters.length > this.model.max_input_chars_per_word) return unknown;
    const ids = [];
    for (let start = 0, end; start < letters.length; start = end) {
      const prefix = start > 0 ? this.model.continuing_subword_prefix : "";
      let id;
      for (end = letters.length; end > start; end--) {
        id = this.vocabulary.get(prefix + letters.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return unknown;
      ids.push(id);
    }
    return ids;
  }
}

// ------------------------------------------------------------------------------------------------------ reading files

const LAYOUT_VERSION = "1";
const GROUP_SIZE = 32; // weights of a row that share a scale, in 4 bits
const BYTES = { U8: 1, I8: 1, F16: 2 };

/** The bytes of a compact safetensors file -> its weights, as Float32Arrays that are asked for by name and shape.

    The file is the length of a JSON text (8 bytes), this text, which says where each tensor is, and the tensors.
    A matrix NAME of R rows and C columns is two of them:

      NAME.int4    (R, C / 2) bytes: two numbers from -8 to 7 in each, each with 8 added; that of the even column
                   is in the lower four bits. Or NAME.int8, (R, C): one number from -127 to 127 in each byte.
      NAME.scales  (R, groups) float16: a weight is its number times the scale of its group. A group is 32 columns
                   in 4 bits, and a row in 8. */
function readWeights(bytes, path) {
  const fail = (problem) => {
    throw new Error(`${path} ${problem}`);
  };
  if (bytes.length < 8) fail("is cut short");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const dataStart = 8 + Number(view.getBigUint64(0, true));
  if (dataStart > bytes.length) fail("is cut short, or is no safetensors file");
  const { __metadata__: metadata, ...header } = parseJson(bytes.subarray(8, dataStart), path);
  if (metadata?.compact_layout !== LAYOUT_VERSION) {
    fail(`has the layout ${metadata?.compact_layout}, this page reads ${LAYOUT_VERSION}: export it again`);
  }
  const stored = new Map();
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    if (dataStart + end > bytes.length) fail("is cut short");
    if (end - begin !== shape.reduce((size, n) => size * n, choose(BYTES, dtype))) fail(`has a wrong size of ${name}`);
    stored.set(name, { dtype, shape, data: bytes.subarray(dataStart + begin, dataStart + end) });
  }

  const get = (name, shape) => {
    let values;
    const packed = stored.get(`${name}.int4`) ?? stored.get(`${name}.int8`);
    if (packed) {
      const scales = stored.get(`${name}.scales`);
      if (!scales) fail(`has no ${name}.scales`);
      const [R, C] = [packed.shape[0], packed.shape[1] * (packed.dtype === "U8" ? 2 : 1)];
      const groupSize = packed.dtype === "U8" ? GROUP_SIZE : C;
      const G = Math.ceil(C / groupSize);
      if (scales.dtype !== "F16" || scales.shape.join() !== `${R},${G}`) fail(`has ${name}.scales of a wrong shape`);
      if (`${R},${C}` !== shape.join()) fail(`has ${name} of ${R} x ${C} numbers, not ${shape.join(" x ")}`);
      const scale = fromFloat16(scales.data); // (R, G)
      const numbers = packed.dtype === "U8" ? fromInt4(packed.data) : new Int8Array(packed.data); // (R, C)
      values = new Float32Array(R * C);
      for (let r = 0; r < R; r++) {
        for (let c = 0; c < C; c++) values[r * C + c] = numbers[r * C + c] * scale[r * G + Math.floor(c / groupSize)];
      }
    } else {
      const tensor = stored.get(name);
      if (!tensor) fail(`has no ${name}`);
      if (tensor.dtype !== "F16" || tensor.shape.join() !== shape.join()) fail(`has ${name} of a wrong shape`);
      values = fromFloat16(tensor.data);
    }
    if (!values.every(Number.isFinite)) fail(`has ${name} with a number that is not finite`);
    return values;
  };
  return { get };
}

/** Two numbers from -8 to 7 in each byte */
function fromInt4(bytes) {
  const numbers = new Int8Array(2 * bytes.length);
  bytes.forEach((byte, n) => {
    numbers[2 * n] = (byte & 15) - 8;
    numbers[2 * n + 1] = (byte >> 4) - 8;
  });
  return numbers;
}

/** Two bytes are one number: a sign, 5 bits of exponent and 10 bits of fraction */
function fromFloat16(bytes) {
  const numbers = new Float32Array(bytes.length / 2);
  for (let n = 0; n < numbers.length; n++) {
    const bits = bytes[2 * n] | (bytes[2 * n + 1] << 8);
    const sign = bits >> 15 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    if (exponent === 31) numbers[n] = NaN; // or infinite
    else numbers[n] = sign * (exponent > 0 ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
  }
  return numbers;
}

function parseJson(bytes, path) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw new Error(`${path} is cut short, or is no JSON`);
  }
}

function choose(table, key) {
  if (!Object.hasOwn(table, key)) throw new Error(`${key} is not supported: ${Object.keys(table).join(", ")} are`);
  return table[key];
}

if (typeof module !== "undefined") module.exports = { Encoder, WordPiece }; // for Node.js
