export function findLongLines(
  markdown: string,
): readonly { readonly line: number; readonly length: number }[];
export function isPage(path: string): boolean;
