/** Functions for programs and the command line that make, list, show and archive projects. */
import {
  canonicalJson,
  type JsonValue,
  KernelError,
  nameSchema,
  type ProjectId,
  type ProjectLimits,
  projectLimitsSchema,
  safeParse,
  toBadRequest,
  tryParseId,
} from '@boxcar/kernel';
import {
  archiveProject as archiveRow,
  createProject as createRow,
  findProjectByRef,
  loadProject,
  type ProjectReport,
} from '@boxcar/store';
import type pg from 'pg';
import { z } from 'zod';
import { newId } from '../lib/index.js';

export interface CreateProjectOptions {
  /** 1 to 200 characters, and not in the form of an id. */
  readonly name: string;
  /** In the form of `setProjectLimits` of the store and `boxcar projects set`. Default: no limits. */
  readonly limits?: ProjectLimits | undefined;
}

/** A project, and whether this call has made it. */
export interface CreatedProject extends ProjectReport {
  readonly outcome: 'created' | 'unchanged';
}

const createSchema = z.strictObject({
  name: nameSchema.refine(
    (name) => tryParseId(name) === undefined,
    'must not have the form of an id: projects are named by id too',
  ),
  limits: projectLimitsSchema.optional(),
});

/**
 * Makes a project with its operator, or returns the existing one: a repeated call makes no second project. Two or three
 * statements.
 *
 * @throws KernelError `bad_request` with all findings; `conflict` when a project of this name has limits other than the given
 * ones.
 */
export async function createProject(pool: pg.Pool, options: CreateProjectOptions): Promise<CreatedProject> {
  const parsed = safeParse(createSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  const { name, limits } = parsed.data;
  const id = newId<'project'>();
  const isNew = await createRow(pool, {
    id,
    name,
    limits: limits ?? {},
    operatorAgentId: newId<'agent'>(),
    bootstrapCardId: newId<'card'>(),
  });
  const project = await loadProject(pool, isNew ? id : (await findProjectByRef(pool, name)).id);
  if (!isNew && limits !== undefined && textOf(project.limits) !== textOf(limits))
    throw new KernelError('conflict', {
      message: `There is a project '${name}' with other limits.`,
      next: 'Change them: boxcar projects set',
      details: { project_id: project.project_id, limits: project.limits as JsonValue },
    });
  return { ...project, outcome: isNew ? 'created' : 'unchanged' };
}

const textOf = (limits: ProjectLimits): string => canonicalJson(limits as JsonValue);

/** A project by id or name. Two statements. @throws KernelError `not_found`. */
export async function getProject(pool: pg.Pool, project: string): Promise<ProjectReport> {
  return loadProject(pool, await idOf(pool, project));
}

/**
 * Archives a project, or opens it again with `isArchived: false`. New submissions from outside are refused (`project_archived`),
 * except those that only end or collect running work: `cancel`, `collect`, `raise_budget`. Accepted turns continue to their ends,
 * with everything that they delegate. Three statements. A repeated call changes nothing.
 *
 * @param project - Id or name.
 * @returns The project, with the turns that have not ended.
 * @throws KernelError `not_found`, `bad_request` for options that are not valid.
 */
export async function archiveProject(
  pool: pg.Pool,
  project: string,
  options: { readonly isArchived?: boolean | undefined } = {},
): Promise<ProjectReport> {
  const parsed = safeParse(archiveSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, '');
  return archiveRow(pool, await idOf(pool, project), parsed.data.isArchived);
}

const archiveSchema = z.strictObject({ isArchived: z.boolean().default(true) });

/** Programs without types also pass their project here. */
async function idOf(pool: pg.Pool, project: unknown): Promise<ProjectId> {
  const parsed = safeParse(z.string(), project);
  if (!parsed.success) throw toBadRequest(parsed.error, 'project');
  return (await findProjectByRef(pool, parsed.data)).id;
}
