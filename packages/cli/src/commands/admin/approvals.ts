/** `boxcar approvals ls|show|approve|deny`. */
import { settingSchemas } from '@boxcar/host/config';
import { type ApprovalTicket, TICKET_STATUSES, type TicketStatus } from '@boxcar/kernel';
import { ApprovalGate } from '@boxcar/runtime';
import { type Command, Option } from 'commander';
import { EXIT, flag, helpOf, type Run } from '../../command.js';
import type { Context } from '../../context.js';
import { idArgument } from '../../input/id-argument.js';
import { formatShortDuration, formatTable } from '../../text/text.js';
