/** The resources that a request `subscriptions/listen` names. */
type Json = Readonly<Record<string, unknown>>;

const objectAt = (value: unknown, name: string): Json => {
  const found: unknown = typeof value === 'object' && value !== null ? Reflect.get(value, name) : undefined;
  return typeof found === 'object' && found !== null && !Array.isArray(found) ? (found as Json) : {};
};

const filterOf = (message: unknown): Json => objectAt(objectAt(message, 'params'), 'notifications');

/** Undefined when it is not a list of strings, which the SDK then reports. */
export function urisOf(message: unknown): readonly string[] | undefined {
  const { resourceSubscriptions: uris } = filterOf(message);
  if (!Array.isArray(uris) || !uris.every((uri) => typeof uri === 'string')) return undefined;
  return [...new Set<string>(uris)];
}

/** The same request with other resources. */
export const withUris = (message: unknown, uris: readonly string[]): unknown => ({
  ...(message as Json),
  params: {
    ...objectAt(message, 'params'),
    notifications: { ...filterOf(message), resourceSubscriptions: uris },
  },
});
