// Writes a reference of the exports as HTML, from the declarations and comments in the built packages. It is in a package of its own because
// TypeDoc cannot use the workspace's TypeScript 7.
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Application, Comment, Converter, ReflectionKind } from 'typedoc';
import ts from 'typescript';
import { listEntries } from '../../scripts/api.mjs';
import { readScriptArguments } from '../../scripts/script-arguments.mjs';

const { flags } = readScriptArguments(
  `Usage: node tools/api-docs/api-docs.mjs [--check]

Writes the reference of all exports to tools/api-docs/dist, after the packages have been built. Exits with 1 for a broken {@link} in a
comment, and for an export of a program's package that mentions a type which is not exported.

  --check   write nothing`,
  { flags: ['check'] },
);

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const entries = new Map(listEntries().map(({ name, declarations }) => [join(root, declarations), name]));

/** Types that exports mention and that no program needs by name. */
const NOT_EXPORTED = {
  '@boxcar/runtime': [
    // For the kernel's own doors, tests, and other parts of the runtime.
    'InnerSubmitOptions',
    'LeaseClock',
    'RuntimeCore',
  ],
};
/** Their types are exported for packages that import them; knip refuses exports that no package imports. */
const LOWER_PACKAGES = ['@boxcar/kernel', '@boxcar/store'];

const { config } = ts.readConfigFile(join(root, 'tsconfig.base.json'), ts.sys.readFile);
const { options: compilerOptions } = ts.convertCompilerOptionsFromJson(
  { ...config.compilerOptions, composite: false, noEmit: true },
  root,
);
const app = await Application.bootstrap(
  {
    name: 'Boxcar',
    readme: 'none',
    entryPoints: [...entries.keys()],
    out: join(root, 'tools/api-docs/dist'),
    excludeInternal: true,
    // The declarations are built files, which no reader wants to open.
    disableSources: true,
    hideGenerator: true,
  },
  [],
);
app.options.setCompilerOptions([...entries.keys()], compilerOptions, undefined);

app.converter.on(Converter.EVENT_CREATE_DECLARATION, (context, reflection) => {
  const declaration = context.getSymbolFromReflection(reflection)?.declarations?.[0];
  if (declaration === undefined) return;
  if (reflection.kind === ReflectionKind.Module)
    reflection.name = entries.get(declaration.getSourceFile().fileName) ?? reflection.name;
  // `z.infer<typeof schema>` and `(typeof NAMES)[number]` would hide the fields and the values.
  if (reflection.kind === ReflectionKind.TypeAlias && /\btypeof\b/.test(declaration.type?.getText())) {
    reflection.comment ??= new Comment();
    reflection.comment.modifierTags.add('@useDeclaredType');
  }
});

/** @param {Partial<import('typedoc').ValidationOptions>} checks */
function validate(project, checks) {
  const none = { invalidLink: false, invalidPath: false, notDocumented: false, notExported: false };
  app.options.setValue('validation', {
    ...none,
    rewrittenLink: false,
    unusedMergeModuleWith: false,
    ...checks,
  });
  app.validate(project);
}

const project = await app.convert();
if (project !== undefined) {
  validate(project, { invalidLink: true, invalidPath: true });
  const names = new Set([...entries.values()].map((name) => name.split('/').slice(0, 2).join('/')));
  for (const name of names) {
    if (LOWER_PACKAGES.includes(name)) continue;
    // TypeDoc checks the types of one package.
    project.packageName = name;
    app.options.setValue('intentionallyNotExported', NOT_EXPORTED[name] ?? []);
    validate(project, { notExported: true });
  }
  project.packageName = undefined;
  if (!flags.has('check')) await app.generateOutputs(project);
}
process.exitCode = app.logger.hasErrors() || app.logger.hasWarnings() ? 1 : 0;
