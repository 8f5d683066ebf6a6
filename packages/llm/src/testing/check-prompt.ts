import { checkMessages, isJsonObject, type JsonValue, type Message } from '@boxcar/kernel';

const wireName = /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/;
const REFUSED_AT_ROOT = ['anyOf', 'oneOf', 'allOf', 'enum', 'not', '$ref'];

interface Declared {
  readonly name: string;
  readonly description: string;
  readonly parameters: JsonValue;
}

/**
 * Findings in a schema at any depth: arrays without `items`, which OpenAI and Gemini refuse (https://github.com/sigoden/aichat/pull/1049,
 * https://github.com/jackmusick/bifrost/pull/225), and names of properties that the provider refuses.
 */
function checkSchema(schema: JsonValue, place: string, propertyName: RegExp | undefined): readonly string[] {
  if (Array.isArray(schema)) return schema.flatMap((part) => checkSchema(part, place, propertyName));
  if (!isJsonObject(schema)) return [];
  const types = Array.isArray(schema.type) ? schema.type : [schema.type];
  const findings =
    types.includes('array') && !isJsonObject(schema.items) ? [`${place}: array schema missing items`] : [];
  for (const [keyword, part] of Object.entries(schema)) {
    if (part === undefined || ['enum', 'const', 'default', 'examples', 'required'].includes(keyword))
      continue;
    if (!['properties', '$defs', 'definitions'].includes(keyword) || !isJsonObject(part)) {
      findings.push(...checkSchema(part, place, propertyName));
      continue;
    }
    for (const [name, member] of Object.entries(part)) {
      if (keyword === 'properties' && propertyName?.test(name) === false)
        findings.push(`${place}: property keys should match ${propertyName.source}`);
      findings.push(...checkSchema(member ?? null, `${place}.${name}`, propertyName));
    }
  }
  return findings;
}

/**
 * Checks the rules that every provider enforces for a prompt, whatever its wire format.
 *
 * @throws Error with the findings.
 */
export function checkPrompt(
  messages: readonly Message[],
  tools: readonly Declared[],
  { propertyName }: { readonly propertyName?: RegExp } = {},
): void {
  const findings = [...checkMessages(messages, tools)];
  const declared = new Set(tools.map((tool) => tool.name));
  for (const { name, parameters } of tools) {
    if (!wireName.test(name)) findings.push(`tool name '${name}' is refused`);
    if (!isJsonObject(parameters)) continue;
    if (!isJsonObject(parameters.properties)) findings.push(`tool '${name}': properties are missing`);
    findings.push(...checkSchema(parameters, `tool '${name}'`, propertyName));
    const refused = REFUSED_AT_ROOT.filter((keyword) => keyword in parameters);
    if (refused.length > 0) findings.push(`tool '${name}': ${refused.join(', ')} at the root`);
  }
  for (const message of messages) {
    if (message.role !== 'assistant') continue;
    for (const { name } of message.toolCalls ?? []) {
      if (!wireName.test(name)) findings.push(`call of '${name}': the name is refused`);
      if (declared.size === 0) findings.push(`call of '${name}': a history of calls without any tool`);
    }
  }
  if (findings.length > 0) throw new Error(findings.join('; '));
}
