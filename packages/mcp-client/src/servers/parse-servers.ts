/** Reads the operator's MCP servers, from a file or from code: the result is either all errors at once or the frozen entries. */
import {
  checkSettings,
  parseSettings,
  readSettingsText,
  type SettingsFinding,
  type SettingsFormat,
} from '@boxcar/adapters/targets';
import { findingsOf, isJsonObject, SERVER_NAME, safeParse } from '@boxcar/kernel';
import { type ServerDefinition, type ServerDefinitions, schemaOf } from './server-definition.js';

const VARIABLE = 'BOXCAR_MCP_SERVERS';

function readServer(name: string, input: unknown): ServerDefinition | readonly SettingsFinding[] {
  if (!SERVER_NAME.test(name))
    return [{ path: [name], message: 'the name of a server has letters, digits, _ and - only, 32 at most' }];
  if (!isJsonObject(input)) return [{ path: [name], message: 'must be an object' }];
  const schema = schemaOf(input);
  if (schema === undefined) return [{ path: [name], message: 'must have command, or url: one of the two' }];
  const parsed = safeParse<ServerDefinition>(schema, input);
  if (parsed.success) return Object.freeze(parsed.data);
  return findingsOf(parsed.error).map(({ path, message }) => ({
    path: [name, ...(path === '' ? [] : path.split('.'))],
    message,
  }));
}

const FORMAT: SettingsFormat<ServerDefinitions> = {
  root: 'servers',
  read: (input, refuse) => {
    const servers = new Map<string, ServerDefinition>();
    if (!isJsonObject(input)) {
      refuse({ path: [], message: 'must be an object: the name of each server, and its entry' });
      return servers;
    }
    for (const [name, entry] of Object.entries(input)) {
      const read = readServer(name, entry);
      if (Array.isArray(read)) read.forEach(refuse);
      else servers.set(name, read as ServerDefinition);
    }
    return servers;
  },
};

/**
 * Checks servers that a program gives in code.
 *
 * @throws KernelError `bad_config` with all findings.
 */
export const checkServers = (input: unknown): ServerDefinitions => checkSettings(input, FORMAT);

/**
 * Reads servers from YAML or JSON.
 *
 * @param file - The name of the text in findings.
 * @throws KernelError `bad_config` with all findings, each `file:line:column path: what`.
 */
export const parseServers = (text: string, file: string): ServerDefinitions =>
  parseSettings(text, file, FORMAT);

/**
 * Reads the servers of a file.
 *
 * @throws KernelError `bad_config` when it cannot be read or is not valid.
 */
export const readServersFile = (file: string): ServerDefinitions =>
  parseServers(readSettingsText(file, { what: 'MCP servers', variable: VARIABLE }), file);
