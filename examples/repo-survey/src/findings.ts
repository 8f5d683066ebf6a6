/** The findings of the experts for parts of the tree, and their sum in a report. Pure: every figure of the report comes from a finding. */
import { z } from 'zod';
import { noneSkipped, SKIP_REASONS, type Skipped, type SkipReason } from './source-files.js';

/** The maximum number of functions and TODOs that a finding or a report lists; the counts include all of them. */
const MAX_FUNCTIONS = 10;
export const MAX_TODOS = 20;

const count = z.number().int().nonnegative();

const skippedSchema = z.strictObject({
  binary: count,
  too_large: count,
  over_limit: count,
  links: count,
  unreadable: count,
  ignored_folders: count,
} satisfies Record<SkipReason, typeof count>);
const languageSchema = z.strictObject({ language: z.string(), files: count, lines: count });
const longFunctionSchema = z.strictObject({
  name: z.string(),
  file: z.string(),
  line: count,
  lines: count,
});
const todoSchema = z.strictObject({ file: z.string(), line: count, text: z.string() });

/** The deliverable of an expert for one folder. */
const findingSchema = z.strictObject({
  folder: z.string(),
  files: count,
  lines: count,
  by_language: z.array(languageSchema),
  skipped: skippedSchema,
  code_files: count,
  unparsed: count,
  exports: count,
  functions: count,
  longest_functions: z.array(longFunctionSchema),
  todos: count,
  first_todos: z.array(todoSchema),
});
export type Finding = z.infer<typeof findingSchema>;
export type StructureFinding = Pick<Finding, 'folder' | 'files' | 'lines' | 'by_language' | 'skipped'>;
export type CodeFinding = Pick<
  Finding,
  'folder' | 'code_files' | 'unparsed' | 'exports' | 'functions' | 'longest_functions'
>;
export type TodoFinding = Pick<Finding, 'folder' | 'todos' | 'first_todos'>;
export type LongFunction = z.infer<typeof longFunctionSchema>;

/** The outcome of one task of the fork_join, as the principal receives it: a finding, or the reason for its absence. */
export const answerSchema = z.looseObject({
  status: z.string(),
  summary: z.unknown(),
  error: z.looseObject({ code: z.string(), message: z.string() }).nullish(),
});

export const reportSchema = z.strictObject({
  summary: z.string(),
  files: count,
  lines: count,
  exports: count,
  functions: count,
  todos: count,
  longest_functions: z.array(longFunctionSchema),
  by_folder: z.array(
    z.strictObject({
      /** The path below the surveyed root. For the surveyed folder itself: only the files directly in it. */
      folder: z.string(),
      files: count,
      lines: count,
      exports: count,
      functions: count,
      todos: count,
    }),
  ),
  by_language: z.array(languageSchema),
  first_todos: z.array(todoSchema),
  /** Files of the folder that are in no figure, and code files that could not be parsed. */
  skipped: skippedSchema.extend({ unparsed: count }),
  experts: count,
  /** Answers without a finding; their part is missing in the figures. */
  unanswered: z.array(z.strictObject({ code: z.string(), message: z.string() })),
});
/** The deliverable of the survey. */
export type SurveyReport = z.infer<typeof reportSchema>;

const compareText = (left: string, right: string): number => (left < right ? -1 : left > right ? 1 : 0);

/** The longest first; equally long functions by file and line. */
export const longest = (functions: readonly LongFunction[]): LongFunction[] =>
  functions
    .toSorted((a, b) => b.lines - a.lines || compareText(a.file, b.file) || a.line - b.line)
    .slice(0, MAX_FUNCTIONS);

/** Adds languages up and sorts them by lines, in descending order. */
export function addLanguages(
  languages: readonly z.infer<typeof languageSchema>[],
): z.infer<typeof languageSchema>[] {
  const sums = new Map<string, { language: string; files: number; lines: number }>();
  for (const { language, files, lines } of languages) {
    const sum = sums.get(language) ?? { language, files: 0, lines: 0 };
    sums.set(language, { language, files: sum.files + files, lines: sum.lines + lines });
  }
  return [...sums.values()].sort((a, b) => b.lines - a.lines || compareText(a.language, b.language));
}

function addSkipped(total: Skipped, part: Readonly<Skipped>): void {
  for (const reason of SKIP_REASONS) total[reason] += part[reason];
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number =>
  items.reduce((total, item) => total + of(item), 0);

/** Combines the experts' answers into a report without its summary. */
export function combineFindings(
  answers: readonly z.infer<typeof answerSchema>[],
): Omit<SurveyReport, 'summary'> {
  const findings: Finding[] = [];
  const unanswered: SurveyReport['unanswered'] = [];
  for (const answer of answers) {
    const parsed = findingSchema.safeParse(answer.summary);
    if (parsed.success) findings.push(parsed.data);
    else {
      const { code = 'no_finding', message = `The expert ended as ${answer.status} without a finding.` } =
        answer.error ?? {};
      unanswered.push({ code, message: message.slice(0, 500).toWellFormed() });
    }
  }
  const skipped = { ...noneSkipped(), unparsed: sum(findings, (item) => item.unparsed) };
  for (const finding of findings) addSkipped(skipped, finding.skipped);
  return {
    files: sum(findings, (item) => item.files),
    lines: sum(findings, (item) => item.lines),
    exports: sum(findings, (item) => item.exports),
    functions: sum(findings, (item) => item.functions),
    todos: sum(findings, (item) => item.todos),
    longest_functions: longest(findings.flatMap((item) => item.longest_functions)),
    by_folder: findings
      .map(({ folder, files, lines, exports, functions, todos }) => ({
        folder,
        files,
        lines,
        exports,
        functions,
        todos,
      }))
      .sort((a, b) => compareText(a.folder, b.folder)),
    by_language: addLanguages(findings.flatMap((item) => item.by_language)),
    first_todos: findings
      .flatMap((item) => item.first_todos)
      .sort((a, b) => compareText(a.file, b.file) || a.line - b.line)
      .slice(0, MAX_TODOS),
    skipped,
    experts: answers.length,
    unanswered,
  };
}
