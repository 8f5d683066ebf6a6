/**
 * The prompts that tests make, kept so that providers can be called with them. `BOXCAR_KEEP_PROMPTS` names the folder
 * (docs/explanation/testing.md).
 */
import { appendFileSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Model, ModelRequest } from '@boxcar/kernel';

export type KeptPrompt = Pick<ModelRequest, 'messages' | 'tools'>;

// biome-ignore lint/style/noProcessEnv: a switch of the tests, which no program reads.
const FOLDER = process.env.BOXCAR_KEEP_PROMPTS;

/** Calls `keep` with each prompt before the model is called. */
export const keepingPrompts = (model: Model, keep: (prompt: KeptPrompt) => void): Model =>
  Object.assign(Object.create(model) as Model, {
    generate: (request: ModelRequest, options: { readonly signal: AbortSignal }) => {
      keep({ messages: request.messages, tools: request.tools });
      return model.generate(request, options);
    },
  });

/** Returns the unchanged model when no folder for prompts is set. */
export function keptInFolder(model: Model): Model {
  if (FOLDER === undefined) return model;
  mkdirSync(FOLDER, { recursive: true });
  const file = join(FOLDER, `${process.pid}.jsonl`);
  return keepingPrompts(model, (prompt) => appendFileSync(file, `${JSON.stringify(prompt)}\n`));
}

/** Prompts that earlier runs have kept. */
export const readKeptPrompts = (): readonly KeptPrompt[] =>
  FOLDER === undefined
    ? []
    : readdirSync(FOLDER)
        .filter((name) => name.endsWith('.jsonl'))
        .flatMap((name) => readFileSync(join(FOLDER, name), 'utf8').split('\n'))
        .filter((line) => line !== '')
        .map((line): KeptPrompt => JSON.parse(line));
