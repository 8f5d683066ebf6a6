import { parseArgs } from 'node:util';

/**
 * Parses the command line of a script. Prints `usage` and exits with 0 for `--help`; reports an argument that it does not know in one
 * line and exits with 2, before any work was done.
 */
export function readScriptArguments(usage, { flags = [], maxPositionals = 0 } = {}) {
  const options = Object.fromEntries([...flags, 'help'].map((name) => [name, { type: 'boolean' }]));
  let parsed;
  try {
    parsed = parseArgs({ options, allowPositionals: maxPositionals > 0 });
    if (parsed.positionals.length > maxPositionals)
      throw new Error(`Unexpected argument '${parsed.positionals[maxPositionals]}'`);
  } catch (error) {
    console.error(`${error.message.split('. ')[0]}; see --help`);
    process.exit(2);
  }
  if (parsed.values.help === true) {
    console.log(usage);
    process.exit(0);
  }
  return { flags: new Set(Object.keys(parsed.values)), positionals: parsed.positionals };
}
