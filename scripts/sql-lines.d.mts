export interface LongLine {
  readonly line: number;
  readonly columns: number;
}
export function findLongSql(file: string, text: string): readonly LongLine[];
