/* The wire contract between the BPF programs and probes/wire.py.
 *
 * Every record starts with a header. Times are CLOCK_MONOTONIC nanoseconds. A
 * process is (pid, start_ns). tests/probes/test_wire.py compiles this file and
 * fails when wire.py drifts from it.
 */
#pragma once

#define MAX_FRAMES 512      /* frames kept of one stack */
#define FILE_BYTES 256      /* of a code object's file name, its end */
#define NAME_BYTES 192      /* of a code object's qualified name, its start */
#define PATH_BYTES 256      /* of an opened path, its start */
#define FILENAME_BYTES 256  /* of an executed file's name, its start */
#define ARGV_BYTES 2048     /* of a command line, its start */
#define ARG_BYTES 512       /* of one argument, its start */
#define MAX_ARGS 32         /* arguments kept of a command line */

enum kind {
  KIND_FORK,
  KIND_EXEC,
  KIND_EXIT,
  KIND_FUNCTION,
  KIND_SAMPLE,
  KIND_MODULE,
  KIND_FILE,
  KIND_LISTEN,
  KIND_ACCEPT,
  KIND_WAIT,
  KIND_CONNECT,
  KIND_LOOKUP,
  KIND_RAN,    /* these are kept in maps for the reader: of them */
  KIND_PAGES,  /* nothing is sent, only losses are counted */
  KIND_BLOCK,
  KIND_DRIVER,
  KIND_STACK,  /* of the kernel, in `kernel_stacks` */
  KIND_COUNT,
};

enum cause { CAUSE_ON_CPU, CAUSE_WAIT, CAUSE_EDGE, CAUSE_CHANGE, CAUSE_YIELDED };

struct header {
  u64 ts_ns;
  u64 start_ns; /* of the process */
  u32 pid;      /* of the process (tgid), as the tracer's namespace numbers it */
  u32 tid;
  u16 kind;
  u16 cpu;
  u32 size;     /* of the whole record */
};

struct fork_event {
  struct header h;
  u64 child_start_ns;
  u32 child_pid;
  u32 pad;
};

struct exec_event {
  struct header h;
  u32 argv_bytes; /* used of argv, each argument with its NUL */
  u32 truncated;
  char filename[FILENAME_BYTES];
  char argv[ARGV_BYTES + ARG_BYTES]; /* room for one bounded read past the end */
};

struct exit_event {
  struct header h;
  s32 wait_status; /* as waitpid(2) gives it, -1 if unseen */
  u32 pad;
};

/* The text of a Python string as it lies in memory; the reader decodes it. */
struct text {
  u32 state;  /* the object's state word: character width, ASCII or not */
  u32 length; /* in characters */
};

struct function_event {
  struct header h;
  u64 key;
  u32 line;
  u32 version; /* of the interpreter, 0x030b for 3.11 */
  struct text file;
  struct text name;
  char file_data[FILE_BYTES];
  char name_data[NAME_BYTES];
};

struct sample_event {
  struct header h;
  u16 frames;
  u8 cause;
  u8 truncated;
  s32 kernel_stack; /* in `kernel_stacks`; negative: the thread was not in the kernel */
  u64 ip;           /* of an ON_CPU sample in user space, else 0 */
  u64 keys[MAX_FRAMES]; /* innermost first; only `frames` of them are sent */
};

struct module_event {
  struct header h; /* ts_ns is the entry */
  u64 end_ns;      /* 0: not left yet */
  u64 key;
  u32 depth;
  u32 pad;
};

struct file_event {
  struct header h; /* ts_ns is the open */
  u64 closed_ns;   /* 0: still open */
  u64 read_bytes;
  u64 mapped_bytes;
  s32 directory_fd; /* a relative path starts here; AT_FDCWD: working directory */
  u32 fd;
  char path[PATH_BYTES];
};

struct socket_event { /* KIND_LISTEN, KIND_ACCEPT */
  struct header h;
  u16 family;
  u16 port;
  u32 fd;
};

enum wait_state { WAIT_SLEEPING, WAIT_BLOCKED, WAIT_PREEMPTED, WAIT_STOPPED };

struct wait_event {
  struct header h; /* of the thread that waited; ts_ns is when it left the CPU */
  u64 end_ns;
  u64 woken_ns;    /* 0: not yet */
  u32 waker_pid;   /* 0: an interrupt, or unseen */
  u32 waker_tid;
  s32 kernel_stack;
  u32 state;
};

#define ADDRESS_BYTES 16

struct connect_event {
  struct header h; /* ts_ns is the call */
  u64 end_ns;
  s32 error;       /* errno, 0 for success */
  u16 family;
  u16 port;
  u8 address[ADDRESS_BYTES];
};

#define HOST_BYTES 128

struct lookup_event {
  struct header h; /* ts_ns is the call */
  u64 end_ns;
  s32 error;       /* EAI_..., 0 for success */
  u32 pad;
  char name[HOST_BYTES];
};

/* What is added up in maps, over buckets of time. */
#define BUCKET_NS 100000000ull

struct ran_key { u64 bucket; u32 tid; u32 cpu; };
struct pages_key { u64 bucket; u64 inode; u64 start_ns; u32 device; u32 pid; };
struct block_key { u64 bucket; u32 device; u32 pad; };
struct driver_key { u64 bucket; u32 pid; u32 tid; u32 fd; u32 pad; };
struct ran_value { u64 start_ns; u64 ran_ns; u32 pid; u32 pad; };
struct pages_value { u64 added_bytes; };
struct block_value { u64 requests; u64 read_bytes; u64 busy_ns; };
struct driver_value { u64 start_ns; u64 calls; u64 spent_ns; };

/* Where a process's CPython keeps what the walk reads: probes/cpython.py. */
struct python_layout {
  u64 runtime;
  u64 code_type;
  u64 pidns_dev;
  u64 pidns_ino;
  u32 runtime_interpreters_head;
  u32 interpreter_next;
  u32 interpreter_threads_head;
  u32 thread_next;
  u32 thread_native_id;
  u32 thread_native_id_indirect;
  u32 thread_frame;
  u32 cframe_current_frame;
  u32 frame_previous;
  u32 frame_code;
  u32 object_type;
  u32 code_filename;
  u32 code_name;
  u32 code_first_line;
  u32 string_length;
  u32 string_state;
  u32 string_ascii_data;
  u32 string_compact_data;
  u32 version;
  u32 pad;
};
#define NO_OFFSET 0xffffffffu
