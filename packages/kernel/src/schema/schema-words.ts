/** Writes ajv's findings about a user's JSON Schema in the kernel's own words. */
import type { ErrorObject } from 'ajv';
import {
  cutEcho,
  FORMATS,
  isJsonObject,
  kindWords,
  meant,
  mustBe,
  orList,
  unknownKeys,
} from '../base/index.js';

const asJson = (value: unknown): string =>
  typeof value === 'string' ? `'${cutEcho(value)}'` : cutEcho(JSON.stringify(value));

const KINDS: Readonly<Record<string, string>> = { integer: 'int' };
const typeWords = (type: string): string => kindWords(KINDS[type] ?? type);

/** The most values that are listed. */
const MAX_VALUES = 40;

function oneOf(values: readonly unknown[], data: unknown): string {
  const more = values.length > MAX_VALUES ? `, … (${values.length} in all)` : '';
  const allowed = `${values.slice(0, MAX_VALUES).map(asJson).join(', ')}${more}`;
  const names = values.filter((value) => typeof value === 'string');
  const given = typeof data === 'string' ? `, not ${asJson(data)}${meant(data, names)}` : '';
  return `must be ${values.length === 1 ? '' : 'one of '}${allowed}${given}`;
}

const UNITS: Readonly<Record<string, string>> = { Length: 'character', Items: 'item', Properties: 'member' };

/** The message for `minLength`, `maxItems` and similar keywords. */
function sizeWords(keyword: string, limit: number): string {
  const unit = UNITS[keyword.slice(3)] ?? 'part';
  const isLeast = keyword.startsWith('min');
  if (isLeast && limit === 1) return 'must not be empty';
  return `must have at ${isLeast ? 'least' : 'most'} ${limit} ${unit}${limit === 1 ? '' : 's'}`;
}

/** The names that the schema gives to members; empty when it allows names by a pattern. */
const namesIn = (schema: unknown): readonly string[] =>
  isJsonObject(schema) && isJsonObject(schema.properties) && schema.patternProperties === undefined
    ? Object.keys(schema.properties)
    : [];

/** The message for one finding of a check with ajv's option `verbose`. */
export function schemaWords({ keyword, params, data, parentSchema, message }: ErrorObject): string {
  switch (keyword) {
    case 'type': {
      const types = [params.type].flat().flatMap((type: unknown) => String(type).split(','));
      return mustBe(orList(types.map(typeWords)), data, types.includes('integer') ? 'a number' : undefined);
    }
    case 'required':
    case 'dependentRequired':
    case 'dependencies':
      return 'is missing';
    case 'enum':
      return oneOf(params.allowedValues, data);
    case 'const':
      return oneOf([params.allowedValue], data);
    case 'minLength':
    case 'maxLength':
    case 'minItems':
    case 'maxItems':
    case 'minProperties':
    case 'maxProperties':
      return sizeWords(keyword, params.limit);
    case 'minimum':
      return `must be at least ${params.limit}`;
    case 'maximum':
      return `must be at most ${params.limit}`;
    case 'exclusiveMinimum':
      return `must be more than ${params.limit}`;
    case 'exclusiveMaximum':
      return `must be less than ${params.limit}`;
    case 'multipleOf':
      return `must be a multiple of ${params.multipleOf}`;
    case 'pattern':
      return `must match /${params.pattern}/`;
    case 'format':
      return `must be ${FORMATS[JSON_FORMATS[params.format] ?? params.format] ?? `a valid ${params.format}`}`;
    case 'additionalProperties':
      return unknownKeys([String(params.additionalProperty)], namesIn(parentSchema));
    case 'unevaluatedProperties':
      return unknownKeys([String(params.unevaluatedProperty)], []);
    case 'additionalItems':
    case 'unevaluatedItems':
      return `must have at most ${params.limit ?? params.len} items`;
    case 'contains':
      return `must have at least ${params.minContains} item${params.minContains === 1 ? '' : 's'}${
        params.maxContains === undefined ? '' : `, and at most ${params.maxContains},`
      } that fits the schema in contains`;
    case 'anyOf':
      return 'must fit one of the schemas in anyOf';
    case 'oneOf':
      return 'must fit exactly one of the schemas in oneOf';
    case 'not':
      return 'must not fit the schema in not';
    case 'if':
      return `must fit the schema in ${params.failingKeyword}`;
    case 'propertyNames':
      return `has the name ${asJson(params.propertyName)}, which is not allowed`;
    case 'false schema':
      return 'must be left out';
    case 'uniqueItems':
      return 'must not have equal items';
    default:
      return message ?? `does not fit ${keyword}`;
  }
}

/** Maps names of formats in JSON Schema to names in `FORMATS`. */
const JSON_FORMATS: Readonly<Record<string, string>> = { 'date-time': 'datetime', uri: 'url' };
