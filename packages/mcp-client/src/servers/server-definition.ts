/** The operator's configuration of an MCP server. Format: docs/reference/mcp.md, "Client side". */
import { AddressRules } from '@boxcar/adapters/wire';
import { KernelError } from '@boxcar/kernel';
import { z } from 'zod';

const MAX_TIMEOUT_MS = 86_400_000;

const filled = z.string().refine((value) => value.trim() !== '', 'must not be blank');

/** A reference to a variable of the worker within a value. */
const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g;

/** Variables that only this installation may know. A server never gets them, whatever its entry says. */
const OURS = /^(BOXCAR_|AGDD_|DATABASE_|PG|REDIS_)/;

export const variablesIn = (text: string): readonly string[] =>
  [...text.matchAll(VARIABLE)].flatMap(([, name]) => name ?? []);

/**
 * Replaces references by the values of the variables. A name without a value stays unchanged: `missingVariables` has already reported it.
 */
export const withVariables = (text: string, values: ReadonlyMap<string, string>): string =>
  text.replace(VARIABLE, (whole, name: string) => values.get(name) ?? whole);

const valueWithVariables = z.string().superRefine((text, context) => {
  if (/[\r\n\0]/.test(text)) context.addIssue({ code: 'custom', message: 'must be one line' });
  const own = variablesIn(text).find((name) => OURS.test(name));
  if (own !== undefined)
    context.addIssue({ code: 'custom', message: `must not take ${own}, which is not for servers` });
});

const variables = z.record(
  z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'must be the name of an environment variable'),
  valueWithVariables,
);
const headers = z.record(
  z.string().regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/, 'must be the name of a header'),
  valueWithVariables,
);

const toolNames = z
  .array(filled)
  .min(1, 'must name a tool')
  .refine((names) => new Set(names).size === names.length, 'names a tool twice');

const shared = {
  /** The tools that agents get, by the server's own names. Default: all. */
  tools: toolNames.optional(),
  /** Tools whose calls may run again after a crash. The server's own declarations do not count. */
  retry_safe: toolNames.optional(),
  /** The time limit of a call. Default: the limit of the profile. */
  timeout_ms: z.int().min(1).max(MAX_TIMEOUT_MS).optional(),
} as const;

const stdioSchema = z.strictObject({
  ...shared,
  command: filled,
  args: z.array(z.string()).default([]),
  cwd: filled.optional(),
  env: variables.default({}),
});

/** @returns The fault of the address. The address is not repeated: its path may contain a secret. */
function findUrlFault(url: string, isPrivateAllowed: boolean): string | undefined {
  if (!URL.canParse(url)) return 'must be an http:// or https:// URL';
  try {
    rulesOf({ url, allow_private: isPrivateAllowed }).check(url, 'the address');
    return undefined;
  } catch (error) {
    const { message } = error as KernelError;
    if (!(error instanceof KernelError)) throw error;
    return message.includes('not public')
      ? 'is at an address that is not public; allow_private: true allows it'
      : 'must be an http:// or https:// URL without a user and a password';
  }
}

const httpSchema = z
  .strictObject({
    ...shared,
    url: filled.transform((url) => url.trim()),
    headers: headers.default({}),
    /** True: the host may lead to an address that is not public. */
    allow_private: z.boolean().default(false),
  })
  .superRefine(({ url, allow_private }, context) => {
    const message = findUrlFault(url, allow_private);
    if (message !== undefined) context.addIssue({ code: 'custom', path: ['url'], message });
  });

export type StdioServer = z.output<typeof stdioSchema>;
export type HttpServer = z.output<typeof httpSchema>;
export type ServerDefinition = StdioServer | HttpServer;

/** By the name of the server. */
export type ServerDefinitions = ReadonlyMap<string, ServerDefinition>;

export const isStdio = (definition: ServerDefinition): definition is StdioServer => 'command' in definition;

/** The addresses that connections to a server may lead to. */
export function rulesOf({
  url,
  allow_private: isAllowed,
}: Pick<HttpServer, 'url' | 'allow_private'>): AddressRules {
  return new AddressRules(isAllowed ? [new URL(url).hostname] : [], 'allow_private of its entry');
}

/** The schema of an entry; undefined for an entry with neither a command nor a URL, or with both. */
export function schemaOf(entry: object): typeof stdioSchema | typeof httpSchema | undefined {
  const hasCommand = 'command' in entry;
  if (hasCommand === 'url' in entry) return undefined;
  return hasCommand ? stdioSchema : httpSchema;
}

/** The members of an entry that may hold variables of the worker. */
export const valuesOf = (definition: ServerDefinition): Readonly<Record<string, string>> =>
  isStdio(definition) ? definition.env : definition.headers;
