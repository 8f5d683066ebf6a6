export interface Place {
  readonly habit: string;
  readonly line: number;
  readonly words: string;
}
export const HABITS: readonly (readonly [name: string, pattern: RegExp])[];
export function findHabits(text: string): readonly Place[];
export function measure(text: string): { readonly words: number; readonly places: readonly Place[] };
