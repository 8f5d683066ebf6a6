import pg from 'pg';

/** Passes each field of each answer on any connection of this process to `note`, until the returned object is disposed of. */
export function watchFields(note: (field: string) => void): Disposable {
  const { prototype } = pg.Connection as unknown as { prototype: { emit: unknown } };
  const isOwn = Object.hasOwn(prototype, 'emit');
  const { emit } = prototype as { emit: (...args: unknown[]) => boolean };
  prototype.emit = function (this: unknown, ...args: unknown[]): boolean {
    const [name, message] = args as [string, { readonly fields?: readonly (string | null)[] } | undefined];
    if (name === 'dataRow') for (const field of message?.fields ?? []) if (field !== null) note(field);
    return Reflect.apply(emit, this, args);
  };
  return {
    [Symbol.dispose]: () => {
      if (isOwn) prototype.emit = emit;
      else Reflect.deleteProperty(prototype, 'emit');
    },
  };
}
