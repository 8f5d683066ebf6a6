/**
 * The commands of the program, in the order of its help. A module of `commands/` is loaded when its command is run, completed or its help
 * is requested; the program's own help needs only this table.
 */
import type { Command } from 'commander';
import type { Run } from './command.js';

export interface ListedCommand {
  readonly name: string;
  /** Used in the help of the program and of the command. */
  readonly description: string;
  /** True: the command needs the modules of all commands. */
  readonly knowsAll?: boolean;
  /** Loads the function that adds the command with this name to the program. */
  load(): Promise<(program: Command, run: Run) => void>;
}

export const COMMANDS: readonly ListedCommand[] = [
  {
    name: 'dev',
    description: 'All of it for development: database, worker, profiles and plugins that reload, a live log.',
    load: async () => (await import('./commands/dev/dev.js')).addDev,
  },
  {
    name: 'worker',
    description: 'Run turns, and accept primitives from the queue boxcar-primitives, until told to stop.',
    load: async () => (await import('./commands/worker/worker.js')).addWorker,
  },
  {
    name: 'serve',
    description: 'Answer HTTP requests under API keys, until told to stop.',
    load: async () => (await import('./commands/serve/serve.js')).addServe,
  },
  {
    name: 'mcp',
    description: 'Serve the Model Context Protocol to the client that starts it, over stdin and stdout.',
    load: async () => (await import('./commands/serve/mcp.js')).addMcp,
  },
  {
    name: 'submit',
    description: 'Submit a primitive. When the receipt is printed it is accepted and cannot get lost.',
    load: async () => (await import('./commands/turn/submit.js')).addSubmit,
  },
  {
    name: 'cancel',
    description: 'End a turn or a run with everything below it; running model calls are aborted.',
    load: async () => (await import('./commands/turn/cancel.js')).addCancel,
  },
  {
    name: 'pack',
    description: 'Pack a context box; with --dry-run say what a child would see, and write nothing.',
    load: async () => (await import('./commands/box/pack.js')).addPack,
  },
  {
    name: 'tree',
    description: 'The turns of a run, turn or batch: who works on what, what it waits for.',
    load: async () => (await import('./commands/turn/tree.js')).addTree,
  },
  {
    name: 'budget',
    description: 'What a run may use, and what is left of it.',
    load: async () => (await import('./commands/turn/budget.js')).addBudget,
  },
  {
    name: 'show',
    description: 'What became of a turn: steps, calls, context, deliverable.',
    load: async () => (await import('./commands/turn/show.js')).addShow,
  },
  {
    name: 'explain',
    description: 'The exact prompt of a step: each message with its reason, the tools, what was left out.',
    load: async () => (await import('./commands/turn/explain.js')).addExplain,
  },
  {
    name: 'why',
    description: 'Where a text of a prompt came from: card, box, packing rule, right, author, tokens.',
    load: async () => (await import('./commands/turn/why.js')).addWhy,
  },
  {
    name: 'why-stuck',
    description: 'What a turn waits for, link by link, down to what will move it, or to nothing.',
    load: async () => (await import('./commands/turn/why-stuck.js')).addWhyStuck,
  },
  {
    name: 'runs',
    description: 'Runs, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('runs'),
  },
  {
    name: 'turns',
    description: 'Turns, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('turns'),
  },
  {
    name: 'agents',
    description: 'Agents, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('agents'),
  },
  {
    name: 'boxes',
    description: 'Context boxes and tapes, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('boxes'),
  },
  {
    name: 'tools',
    description: 'The tools that live workers have registered.',
    load: async () => (await import('./commands/list/list.js')).addList('tools'),
  },
  {
    name: 'primitives',
    description: 'The primitives that live workers and queue doors have registered.',
    load: async () => (await import('./commands/list/list.js')).addList('primitives'),
  },
  {
    name: 'profiles',
    description: 'Agent profiles.',
    load: async () => (await import('./commands/profile/profiles.js')).addProfiles,
  },
  {
    name: 'approvals',
    description: 'Calls that wait for the approval of a person, and the decisions.',
    load: async () => (await import('./commands/admin/approvals.js')).addApprovals,
  },
  {
    name: 'keys',
    description: 'Keys for the HTTP server.',
    load: async () => (await import('./commands/admin/keys.js')).addKeys,
  },
  {
    name: 'handoffs',
    description: 'Tasks handed to agents and to other platforms.',
    load: async () => (await import('./commands/admin/handoffs.js')).addHandoffs,
  },
  {
    name: 'webhooks',
    description: 'Ends of handoffs that are sent to receivers of callbacks.',
    load: async () => (await import('./commands/admin/webhooks.js')).addWebhooks,
  },
  {
    name: 'providers',
    description: 'Limits of the providers of models.',
    load: async () => (await import('./commands/admin/providers.js')).addProviders,
  },
  {
    name: 'box',
    description: 'Boxes of cards: make, look at and share them.',
    load: async () => (await import('./commands/box/box.js')).addBox,
  },
  {
    name: 'tape',
    description: 'Tapes: anchors, entries, commands, and going on from them.',
    load: async () => (await import('./commands/tape/tape.js')).addTape,
  },
  {
    name: 'prices',
    description: 'What calls of models cost.',
    load: async () => (await import('./commands/admin/prices.js')).addPrices,
  },
  {
    name: 'policy',
    description: 'What a policy says of tool calls and handoffs.',
    load: async () => (await import('./commands/admin/policy.js')).addPolicy,
  },
  {
    name: 'projects',
    description: 'Projects and their limits.',
    load: async () => (await import('./commands/admin/projects.js')).addProjects,
  },
  {
    name: 'erase',
    description: 'Erase the content of cards and of late answers. Ids, hashes and manifests stay.',
    load: async () => (await import('./commands/admin/erase.js')).addErase,
  },
  {
    name: 'purge',
    description: 'Remove what finished runs have left behind: turns, agents, boxes and cards.',
    load: async () => (await import('./commands/admin/purge.js')).addPurge,
  },
  {
    name: 'migrate',
    description: "Bring the database to this program's schema, the queue tables included.",
    load: async () => (await import('./commands/admin/migrate.js')).addMigrate,
  },
  {
    name: 'health',
    description:
      'Exit 0 when a worker of this host is alive, by its rows. For the health checks of containers.',
    load: async () => (await import('./commands/admin/health.js')).addHealth,
  },
  {
    name: 'doctor',
    description: 'Looks for what is wrong with database, queue, workers and rows, and says what to do.',
    load: async () => (await import('./commands/admin/doctor.js')).addDoctor,
  },
  {
    name: 'completion',
    knowsAll: true,
    description: 'Print a script that completes commands and options in a shell.',
    load: async () => (await import('./commands/admin/completion.js')).addCompletion,
  },
];
