/**
 * Ends a run that was meant for another major version: its results would say nothing of that one.
 *
 * @param required - The major version; any will do where none is given.
 */
export function requireVersion(what: string, version: string, required: string | undefined): void {
  if (required === undefined || required === '' || version.split('.')[0] === required) return;
  throw new Error(`this run is meant for ${what} ${required}, but runs on ${version}`);
}
