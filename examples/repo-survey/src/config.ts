/** The environment variables, which only this file of the example reads. */
import { KernelError } from '@boxcar/kernel';
import { type ModelSettings, modelEnvironment, toModelSettings } from '@boxcar/llm';
import { z } from 'zod';

const text = z
  .string()
  .optional()
  .transform((value) => (value?.trim() ? value.trim() : undefined));

const schema = z.object({
  /** The folder to which the tools of `plugin.ts` are confined. Default: the working folder. */
  BOXCAR_SURVEY_ROOT: text,
  DATABASE_URL: text.refine((url) => url === undefined || /^postgres(ql)?:\/\//.test(url), {
    message: 'must be a postgres:// URL',
  }),
  DATABASE_DIRECT_URL: text,
  REDIS_URL: text,
  /** The model of all agents instead of the scripted model: `openai:<model>`, … */
  BOXCAR_MODEL: text,
  ...modelEnvironment,
});

export interface SurveyConfig {
  readonly root: string;
  readonly databaseUrl: string | undefined;
  readonly directUrl: string | undefined;
  readonly redisUrl: string | undefined;
  readonly model: string | undefined;
  readonly models: ModelSettings;
}

/** @throws KernelError `bad_config` that lists every wrong setting. */
export function loadConfig(env: NodeJS.ProcessEnv = process.env): SurveyConfig {
  const isSet = (entry: [string, string | undefined]): boolean => (entry[1] ?? '') !== '';
  const parsed = schema.safeParse(Object.fromEntries(Object.entries(env).filter(isSet)));
  if (!parsed.success) {
    const findings = parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
    throw new KernelError('bad_config', { message: `${findings.join('; ')}.`, details: { findings } });
  }
  return Object.freeze({
    root: parsed.data.BOXCAR_SURVEY_ROOT ?? process.cwd(),
    databaseUrl: parsed.data.DATABASE_URL,
    directUrl: parsed.data.DATABASE_DIRECT_URL,
    redisUrl: parsed.data.REDIS_URL,
    model: parsed.data.BOXCAR_MODEL,
    models: toModelSettings(parsed.data),
  });
}
