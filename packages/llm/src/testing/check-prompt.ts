import { checkMessages, isJsonObject, type JsonValue, type Message } from '@boxcar/kernel';

const wireName = /^[a-zA-Z0-9_-]{1,64}$/;
const REFUSED_AT_ROOT = ['anyOf', 'oneOf', 'allOf', 'enum', 'not', '$ref'];

interface Declared {
  readonly name: string;
  readonly description: string;
  readonly parameters: JsonValue;
}

/**
 * What OpenAI and Anthropic refuse in any prompt, whatever its wire format.
 *
 * @throws Error with the findings.
 */
export function checkPrompt(messages: readonly Message[], tools: readonly Declared[]): void {
  const findings = [...checkMessages(messages, tools)];
  const declared = new Set(tools.map((tool) => tool.name));
  for (const { name, parameters } of tools) {
    if (!wireName.test(name)) findings.push(`tool name '${name}' is refused`);
    if (!isJsonObject(parameters)) continue;
    if (!isJsonObject(parameters.properties)) findings.push(`tool '${name}': properties are missing`);
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
