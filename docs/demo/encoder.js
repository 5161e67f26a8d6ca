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
    const types = modules.map((module) => module.type.replace(/^sentence_transformers\.models\./, ""));
    check(types[0] === "Transformer" && modules[0].path === "" && types[1] === "Pooling", "modules.json has no Pooling");
    const steps = []; // what follows the last layer: {type, config, weights}
    for (const [n, { path }] of modules.entries()) {
      if (n === 0) continue;
      check(/^\w+$/.test(path), `modules.json has the path ${path}`);
      const step = { type: types[n], config: await readJson(`${path}/config.json`) };
      if (step.type === "Dense") step.weights = await readTensors(`${path}/model.safetensors`);
      steps.push(step);
    }
    check((limits.do_lower_case ?? false) === false, "sentence_bert_config.json has do_lower_case");
    checkSizes(limits, "max_seq_length");
    return new Encoder(config, steps, settings, new WordPiece(tokenizer, limits.max_seq_length), weights);
  }

  constructor(config, steps, settings, tokenizer, weights) {
    if (!["bert", "electra"].includes(config.model_type)) {
      throw new Error(`config.json has the model_type ${config.model_type}: this page reads bert and electra`);
    }
    check((config.is_decoder ?? false) === false, "config.json has is_decoder: the model is causal");
    check((config.position_embedding_type ?? "absolute") === "absolute", "config.json has relative positions");
    checkSizes(config, "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads");
    checkSizes({ embedding_size: 1, ...config }, "embedding_size", "max_position_embeddings", "type_vocab_size");
    const count = config.num_hidden_layers;
    check(Number.isInteger(count) && count >= 0 && count <= 1000, `config.json has num_hidden_layers ${count}`);
    const epsilon = config.layer_norm_eps;
    check(typeof epsilon === "number" && epsilon >= 0 && epsilon < 1, `config.json has layer_norm_eps ${epsilon}`);
    const D = (this.size = config.hidden_size);
    const E = (this.embeddingSize = config.embedding_size ?? D); // narrower in some ELECTRAs
    const inner = config.intermediate_size;
    this.heads = config.num_attention_heads;
    this.epsilon = epsilon;
    this.activation = choose(HIDDEN_ACTIVATIONS, config.hidden_act);
    this.tokenizer = tokenizer;
    const { prompts, default_prompt_name: name, truncate_dim: dimensions } = settings;
    check(prompts && Object.values(prompts).every((text) => typeof text === "string"), "a prompt is no text");
    check(name === null || Object.hasOwn(prompts, name), `there is no prompt ${name}`);
    this.prompt = name === null ? "" : prompts[name]; // stands before each text
    if (dimensions != null) checkSizes(settings, "truncate_dim");
    this.dimensions = dimensions ?? undefined;

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
    this.layers = Array.from({ length: count }, (_, n) => ({
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
    weights.checkAllUsed();
    let width = D; // of the embedding, which a Dense changes
    this.steps = steps.map((step, n) => {
      check((step.type === "Pooling") === (n === 0), "modules.json has two Poolings");
      const compute = headModule(step, width);
      if (step.type === "Dense") width = step.config.out_features;
      return compute;
    });
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

const HIDDEN_ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  relu: (x) => Math.max(x, 0),
};
const DENSE_ACTIVATIONS = {
  "torch.nn.modules.activation.Tanh": Math.tanh,
  "torch.nn.modules.linear.Identity": (x) => x,
};

/** The function of a module that follows the last layer, as modules.json lists them: x -> (dimensions)

    width: the dimensions of the embedding before it. */
function headModule({ type, config, weights }, width) {
  if (type === "Pooling") {
    const { word_embedding_dimension: size = width, include_prompt: isWhole = true, ...flags } = config;
    const modes = Object.keys(flags).filter((name) => flags[name] === true);
    const areFlags = Object.entries(flags).every(([name, value]) => /^pooling_mode_/.test(name) && typeof value === "boolean");
    const isKnown = ["pooling_mode_cls_token", "pooling_mode_mean_tokens"].includes(modes.join());
    check(areFlags && isKnown && size === width && isWhole === true, "the Pooling is neither the mean nor the first token");
    return config.pooling_mode_cls_token ? (hidden, D) => hidden.slice(0, D) : meanOfRows; // (T, D) -> (D)
  }
  if (type === "Dense") {
    checkSizes(config, "in_features", "out_features");
    check(config.in_features === width && typeof config.bias === "boolean", "a Dense does not fit the module before it");
    const activation = choose(DENSE_ACTIVATIONS, config.activation_function);
    const weight = weights.get("linear.weight", [config.out_features, config.in_features]);
    const zeros = new Float32Array(config.out_features);
    const bias = config.bias ? weights.get("linear.bias", [config.out_features]) : zeros;
    weights.checkAllUsed();
    return (vector) => applyLinear({ weight, bias }, vector).map(activation);
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
const DTYPES = { int4: "U8", int8: "I8" }; // end of the name of a tensor -> its type; else it is F16

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
  let position = 0; // the tensors follow one another, without a gap
  const tensors = Object.entries(header).sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0]);
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of tensors) {
    if (dataStart + end > bytes.length) fail("is cut short");
    if (begin !== position || dtype !== (DTYPES[name.split(".").at(-1)] ?? "F16")) fail(`has a wrong place or type of ${name}`);
    position = end;
    if (end - begin !== shape.reduce((size, n) => size * n, choose(BYTES, dtype))) fail(`has a wrong size of ${name}`);
    stored.set(name, { dtype, shape, data: bytes.subarray(dataStart + begin, dataStart + end) });
  }
  if (dataStart + position !== bytes.length) fail("is too long");

  const get = (name, shape) => {
    let values;
    const take = (key) => {
      const tensor = stored.get(key);
      stored.delete(key);
      return tensor;
    };
    const packed = take(`${name}.int4`) ?? take(`${name}.int8`);
    if (packed) {
      const scales = take(`${name}.scales`);
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
      const tensor = take(name);
      if (!tensor) fail(`has no ${name}`);
      if (tensor.dtype !== "F16" || tensor.shape.join() !== shape.join()) fail(`has ${name} of a wrong shape`);
      values = fromFloat16(tensor.data);
    }
    if (!values.every(Number.isFinite)) fail(`has ${name} with a number that is not finite`);
    return values;
  };
  const checkAllUsed = () => {
    if (stored.size > 0) fail(`has tensors that no weight needs: ${[...stored.keys()].join(", ")}`);
  };
  return { get, checkAllUsed };
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

function check(isRight, problem) {
  if (!isRight) throw new Error(problem);
}

/** Throw an Error unless the entries of these names are whole numbers of 1 or more. */
function checkSizes(config, ...names) {
  for (const name of names) check(Number.isInteger(config[name]) && config[name] > 0, `${name} is ${config[name]}`);
}

function choose(table, key) {
  if (!Object.hasOwn(table, key)) throw new Error(`${key} is not supported: ${Object.keys(table).join(", ")} are`);
  return table[key];
}

if (typeof module !== "undefined") module.exports = { Encoder, WordPiece }; // for Node.js
