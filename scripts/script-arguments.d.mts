export function readScriptArguments(
  usage: string,
  options?: { readonly flags?: readonly string[]; readonly maxPositionals?: number },
): { readonly flags: ReadonlySet<string>; readonly positionals: readonly string[] };
