export interface RoomRules {
  readonly rooms?: Readonly<Record<string, readonly string[]>>;
  readonly entries?: Readonly<Record<string, readonly string[]>>;
  readonly light?: readonly string[];
  readonly circles?: readonly (readonly string[])[];
}
export function checkPackage(texts: ReadonlyMap<string, string>, rules: RoomRules): string[];
