export function commentsOf(source: string, path: string): string;
