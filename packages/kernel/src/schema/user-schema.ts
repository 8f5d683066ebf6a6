/**
 * JSON Schemas from users. A schema is enforced in full, or it is refused when it is applied.
 *
 * S1  Patterns run in a linear-time engine and have their meaning in ECMA-262 (`user-pattern.ts`). Look-around and back
 *     references are refused.
 * S2  Unknown keywords, unknown formats and references that leave the schema are refused.
 * S3  The work of one check is limited, whatever the schema and the value. Each node of the schema counts when it is
 *     applied to a value, with the length of the text or the number of items that it reads. A pattern counts its size
 *     times the length of the text. A value that needs more work does not fit.
 * S4  ajv compiles a schema to code. Therefore the size, depth, parts and patterns of a schema are limited, and also
 *     the parts of all schemas of a profile.
 */
import { Ajv, type Options, type ValidateFunction } from 'ajv';
import { Ajv2019 } from 'ajv/dist/2019.js';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { fullFormats } from 'ajv-formats/dist/formats.js';
import { RE2JS } from 're2js';
import {
  canonicalJson,
  cutEcho,
  errorText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
} from '../base/index.js';
import { countParts, kindOf, MAX_PARTS } from './schema-parts.js';
import { schemaWords } from './schema-words.js';
import { toRe2 } from './user-pattern.js';

const MAX_SCHEMA_BYTES = 64 * 1024;
const MAX_SCHEMA_DEPTH = 64;
/** The most instructions of all compiled patterns of a schema. */
const MAX_PATTERN_SIZE = 10_000;
/** The most work for one value (S3): about half a second. */
const MAX_WORK = 2_000_000;
const MAX_FINDINGS = 10;
const MAX_SCHEMA_FINDINGS = 3;
/** The most errors that are read: alternatives that are reached in several ways can give a million. */
const MAX_ERRORS = 1_000;

/**
 * Keywords that count the work of their node: `WORK` for any value, `TEXT_WORK` for texts. Only the compiled copy of a
 * schema has them.
 */
const WORK = 'boxcar:work';
const TEXT_WORK = 'boxcar:text-work';
/** The number of characters that are counted or compared in the time in which a node is checked. */
const CHARS_PER_UNIT = 64;

class TooMuchWork extends Error {}

/** State of the schema being compiled, or of the value being checked: both operations are synchronous. */
let patternSize = 0;
let work = 0;

function charge(units: number): void {
  work += units;
  if (work > MAX_WORK) throw new TooMuchWork('it takes too much work to check');
}

function compilePattern(pattern: string): RE2JS {
  try {
    return RE2JS.compile(toRe2(pattern));
  } catch (error) {
    const reason = errorText(error);
    throw new Error(`${reason}; write it for RE2, which has no look-around and no back references`);
  }
}

/** S1. */
const linearPattern = Object.assign(
  (pattern: string) => {
    const compiled = compilePattern(pattern);
    const size = compiled.programSize();
    patternSize += size;
    if (patternSize > MAX_PATTERN_SIZE)
      throw new Error(`the patterns are too large together (${MAX_PATTERN_SIZE} instructions at most)`);
    return {
      test: (text: string): boolean => {
        charge(size * (text.length + 1));
        return compiled.test(text);
      },
      // ajv distinguishes patterns by this text.
      toString: () => pattern,
    };
  },
  { code: 'linearPattern' },
);

/** `url` is in no draft, and its expression is not linear. */
const { url: _url, ...formats } = fullFormats;

const OPTIONS: Options = {
  // S2: ajv calls this strict. The other strict modes refuse schemas that ajv could enforce.
  strictSchema: true,
  strictTypes: false,
  strictTuples: false,
  strictRequired: false,
  allowMatchingProperties: true,
  allowUnionTypes: true,
  validateFormats: true,
  // The meta-schemas use `regex`; patterns are checked when they are compiled.
  formats: { ...formats, regex: true },
  code: {
    regExp: linearPattern,
    // Optimizing takes four times as long as everything else.
    optimize: false,
    // The object holds the evaluated names. A plain `{}` would also have the names of `Object.prototype`.
    process: (code: string) =>
      code.replace(/(\bprops\d+ = (?:props\d+ \|\| )?)\{\}/g, '$1Object.create(null)'),
  },
  // Inlining would repeat a part at each reference to it.
  inlineRefs: false,
  addUsedSchema: false,
  // Adds the value and the schema to a finding, for its message.
  verbose: true,
  // Makes `constructor` an ordinary name.
  ownProperties: true,
  // Makes 0.3 a multiple of 0.1.
  multipleOfPrecision: 12,
  logger: false,
};

function chargedJson(item: JsonValue): string {
  const text = canonicalJson(item);
  charge(Math.ceil(text.length / 2));
  return text;
}

function createAjv(Dialect: typeof Ajv | typeof Ajv2019 | typeof Ajv2020): Ajv {
  const ajv: Ajv = new Dialect({ ...OPTIONS, meta: false, validateSchema: false });
  ajv.addKeyword({
    keyword: WORK,
    schemaType: 'number',
    before: 'const',
    errors: false,
    validate: (weight: number, value: unknown): boolean => {
      const size = Array.isArray(value)
        ? value.length
        : typeof value === 'object' && value !== null
          ? Object.keys(value).length
          : 0;
      charge(weight * (1 + size));
      return true;
    },
  });
  ajv.addKeyword({
    keyword: TEXT_WORK,
    type: 'string',
    schemaType: 'number',
    before: 'maxLength',
    errors: false,
    validate: (weight: number, text: string): boolean => {
      charge(Math.ceil((weight * text.length) / CHARS_PER_UNIT));
      return true;
    },
  });
  // ajv's own implementation compares every item with every other item.
  ajv.removeKeyword('uniqueItems');
  ajv.addKeyword({
    keyword: 'uniqueItems',
    type: 'array',
    schemaType: 'boolean',
    error: { message: 'must not have equal items' },
    validate: (isUnique: boolean, items: readonly JsonValue[]): boolean =>
      !isUnique || new Set(items.map(chargedJson)).size === items.length,
  });
  return ajv;
}

/** A draft of JSON Schema: the validator of its schemas, and a factory of compilers, each for one schema. */
interface Dialect {
  readonly uri: RegExp;
  readonly meta: () => Ajv;
  readonly create: () => Ajv;
}

const dialect = (uri: RegExp, Version: typeof Ajv | typeof Ajv2019 | typeof Ajv2020): Dialect => {
  let meta: Ajv | undefined;
  return {
    uri,
    meta: () => {
      meta ??= new Version(OPTIONS);
      return meta;
    },
    create: () => createAjv(Version),
  };
};

const DIALECTS: readonly Dialect[] = [
  dialect(/^https?:\/\/json-schema\.org\/draft\/2020-12\/schema#?$/, Ajv2020),
  dialect(/^https?:\/\/json-schema\.org\/draft\/2019-09\/schema#?$/, Ajv2019),
  dialect(/^https?:\/\/json-schema\.org\/draft-07\/schema#?$/, Ajv),
];
const DEFAULT_DIALECT = 'https://json-schema.org/draft/2020-12/schema';

function dialectOf(schema: JsonObject): Dialect {
  const { $schema = DEFAULT_DIALECT } = schema;
  const found = DIALECTS.find(({ uri }) => typeof $schema === 'string' && uri.test($schema));
  if (found === undefined)
    throw new Error(`$schema: must be draft 2020-12, 2019-09 or 07, not ${JSON.stringify($schema)}`);
  return found;
}

const REFERENCES: ReadonlySet<string> = new Set(['$ref', '$dynamicRef', '$recursiveRef']);

/** Why a keyword cannot be enforced. */
function findKeywordFault(ajv: Ajv, key: string, value: JsonValue): string | undefined {
  if (!Object.hasOwn(ajv.RULES.keywords, key) || key === WORK || key === TEXT_WORK)
    return 'is not a keyword that can be enforced';
  if (key === 'format' && value === 'regex') return "'regex' cannot be enforced in limited time";
  if (REFERENCES.has(key) && !(typeof value === 'string' && value.startsWith('#')))
    return "must refer to a part of this schema, by '#…'";
  return undefined;
}

const sizeOf = (value: JsonValue): number =>
  Array.isArray(value) ? value.length : isJsonObject(value) ? Object.keys(value).length : 1;

/** How many values a keyword visits. Schemas inside it are counted separately. */
function weightOf(key: string, value: JsonValue): number {
  if (key === 'const' || key === 'enum')
    return sizeOf(value) + Math.ceil(JSON.stringify(value).length / CHARS_PER_UNIT);
  if (kindOf(key) !== 'map' || !isJsonObject(value)) return sizeOf(value);
  return Object.values(value).reduce((sum: number, item) => sum + (Array.isArray(item) ? item.length : 1), 0);
}

/** The cost of a text at these keywords, by its length. A format is a regular expression. */
const TEXT_WEIGHTS = new Map([
  ['minLength', 1],
  ['maxLength', 1],
  ['format', 8],
]);

/** A copy in which each node counts its work. @throws Error for a schema that ajv would not enforce. */
function prepare(ajv: Ajv, schema: JsonValue, path: string): JsonValue {
  if (!isJsonObject(schema)) return schema;
  let weight = 1;
  let textWeight = 0;
  const members = Object.entries(schema).map(([key, value]): [string, JsonValue] => {
    const at = path === '' ? key : `${path}.${key}`;
    const fault = findKeywordFault(ajv, key, value);
    if (fault !== undefined) throw new Error(`${at}: ${fault}`);
    weight += weightOf(key, value);
    textWeight += TEXT_WEIGHTS.get(key) ?? 0;
    const kind = kindOf(key);
    if (kind === undefined) return [key, value];
    if (Array.isArray(value)) return [key, value.map((item, index) => prepare(ajv, item, `${at}.${index}`))];
    if (kind === 'map' && isJsonObject(value))
      return [
        key,
        Object.fromEntries(
          Object.entries(value).map(([name, item]) => {
            // ajv would ignore this name.
            if (name === '__proto__') throw new Error(`${at}.${name}: cannot be a name here`);
            return [name, prepare(ajv, item, `${at}.${name}`)];
          }),
        ),
      ];
    return [key, kind === 'map' ? value : prepare(ajv, value, at)];
  });
  if (textWeight > 0) members.push([TEXT_WORK, textWeight]);
  return Object.fromEntries([...members, [WORK, weight]]);
}

function depthOf(value: JsonValue): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Object.values(value).reduce((deepest: number, item) => Math.max(deepest, depthOf(item)), 0);
}

type Checker = { readonly check: ValidateFunction } | { readonly fault: string };

const checkers = new WeakMap<JsonObject, Checker>();

/** @throws Error for a schema that is not valid. */
function checkItself(meta: Ajv, schema: JsonObject): void {
  if (meta.validateSchema(schema) === true) return;
  const findings = (meta.errors ?? []).map(
    (error) => `${pointerToPath(error.instancePath).join('.') || 'the schema'}: ${schemaWords(error)}`,
  );
  throw new Error([...new Set(findings)].slice(0, MAX_SCHEMA_FINDINGS).join('; '));
}

function compile(schema: JsonObject): Checker {
  try {
    if (Buffer.byteLength(JSON.stringify(schema)) > MAX_SCHEMA_BYTES)
      throw new Error(`it is larger than ${MAX_SCHEMA_BYTES} bytes`);
    if (depthOf(schema) > MAX_SCHEMA_DEPTH)
      throw new Error(`it is nested deeper than ${MAX_SCHEMA_DEPTH} levels`);
    if (countParts(schema, MAX_PARTS) > MAX_PARTS)
      throw new Error(`it has too many parts (${MAX_PARTS} at most)`);
    const { meta, create } = dialectOf(schema);
    // ajv keeps every compiled schema and the `$id` of each part, so each schema gets its own instance.
    const ajv = create();
    patternSize = 0;
    work = 0;
    // ajv resolves `#` against this id; a user's own id could be the name of a meta-schema.
    const plain = { ...schema, $id: 'boxcar:/schema' };
    const copy = prepare(ajv, plain, '') as JsonObject;
    checkItself(meta(), plain);
    return { check: ajv.compile(copy) };
  } catch (error) {
    return { fault: errorText(error) };
  }
}

function checkerOf(schema: JsonObject): Checker {
  const checker = checkers.get(schema) ?? compile(schema);
  checkers.set(schema, checker);
  return checker;
}

/** Why this JSON Schema is refused; undefined when each of its keywords can be enforced. */
export function findSchemaFault(schema: JsonObject): string | undefined {
  const checker = checkerOf(schema);
  return 'fault' in checker ? checker.fault : undefined;
}

const pointerToPath = (pointer: string): string[] =>
  pointer
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));

/**
 * The findings about a value by a user's JSON Schema, as `path: message`; empty when the value fits. A check ends at
 * the first fault; for alternatives (`anyOf`), the fault of each is listed.
 *
 * @param root - The name of the value itself.
 */
export function checkBySchema(schema: JsonObject, value: JsonValue, root: string): string[] {
  const checker = checkerOf(schema);
  if ('fault' in checker) return [`${root}: the schema cannot be enforced: ${checker.fault}`];
  work = 0;
  try {
    if (checker.check(value)) return [];
  } catch (error) {
    if (error instanceof TooMuchWork) return [`${root}: ${error.message}`];
    if (error instanceof RangeError) return [`${root}: is nested too deeply for its schema`];
    throw error;
  }
  const errors = (checker.check.errors ?? []).slice(0, MAX_ERRORS);
  const findings = errors.map((error) => {
    const missing: unknown = error.params.missingProperty;
    const path = [...pointerToPath(error.instancePath), ...(typeof missing === 'string' ? [missing] : [])];
    return `${cutEcho(path.join('.')) || root}: ${schemaWords(error)}`;
  });
  return [...new Set(findings)].slice(0, MAX_FINDINGS);
}
