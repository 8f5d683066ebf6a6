/** Reads the data of chat completions that the SDK's providers leave out, from their raw chunks and bodies. */
import { z } from 'zod';

const message = z
  .object({
    refusal: z.string().nullish(),
    reasoning: z.unknown().optional(),
    reasoning_content: z.unknown().optional(),
  })
  .nullish();
const chunk = z.object({
  choices: z.array(z.object({ delta: message, message })).nullish(),
});

export interface RawWords {
  readonly refusal: string;
  /** The field is named `reasoning`, not `reasoning_content`. */
  readonly isNamedOtherwise: boolean;
}

export function readRaw(raw: unknown): RawWords {
  const [choice] = chunk.safeParse(raw).data?.choices ?? [];
  const words = choice?.delta ?? choice?.message;
  return {
    refusal: words?.refusal ?? '',
    isNamedOtherwise: (words?.reasoning ?? '') !== '' && (words?.reasoning_content ?? '') === '',
  };
}
