/** The clients of a worker, or of all queues. They are closed together. */

/** The parts of a client of ioredis, for a server or for a cluster, that this file needs. */
interface Client {
  on(event: 'error', listener: () => void): unknown;
  disconnect(): void;
}

export class ClientGroup<C extends Client> {
  readonly #clients = new Set<C>();

  add(client: C): C {
    this.#clients.add(client);
    client.on('error', () => undefined);
    return client;
  }

  close(): void {
    for (const client of this.#clients) client.disconnect();
  }
}
