/**
 * Fails a run that was meant for another major version, because its results would not be about that version.
 *
 * @param required - The required major version; without it, any version is accepted.
 */
export function requireVersion(what: string, version: string, required: string | undefined): void {
  if (required === undefined || required === '' || version.split('.')[0] === required) return;
  throw new Error(`this run is meant for ${what} ${required}, but runs on ${version}`);
}
