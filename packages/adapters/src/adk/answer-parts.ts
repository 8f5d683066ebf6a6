/** The answer to a question of an agent. */
import type { Part } from '@a2a-js/sdk';
import { z } from 'zod';

/** The key by which an ADK agent marks a part as a tool call or its result. */
const TYPE_KEY = 'adk_type';
const CALL = 'function_call';
const RESPONSE = 'function_response';

const callSchema = z.looseObject({ id: z.string().min(1), name: z.string().min(1) });

const isCall = ({ metadata }: Part): boolean => metadata?.[TYPE_KEY] === CALL;

/**
 * An ADK agent asks by calling a tool, and accepts only the result of that call. Every other agent receives the text.
 *
 * @param askedWith - The data of the question.
 */
export function answerParts(reply: string, askedWith: readonly Part[]): readonly Part[] {
  const responses = askedWith.flatMap((part): Part[] => {
    const { data: call } = callSchema.safeParse(isCall(part) ? part.content?.value : undefined);
    if (call === undefined) return [];
    const value = { id: call.id, name: call.name, response: { result: reply } };
    const content = { $case: 'data', value } as const;
    return [{ content, metadata: { [TYPE_KEY]: RESPONSE }, filename: '', mediaType: 'application/json' }];
  });
  if (responses.length > 0) return responses;
  return [
    { content: { $case: 'text', value: reply }, metadata: undefined, filename: '', mediaType: 'text/plain' },
  ];
}
