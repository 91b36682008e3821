/* Stand-in for libcuda: every call succeeds, nothing is executed, every launch is written down.

   Like the real driver, it takes number and sizes of a kernel's parameters from the loaded cubin
   (EIATTR_KPARAM_INFO in the ELF section .nv.info.<kernel>), so it reads from the launcher's array
   exactly what a GPU would be given. One JSON line per launch goes to the file CUDA_STUB_LOG:
     {"kernel": name, "function": handle, "grid": [x, y, z], "threads": n, "shared": bytes,
      "stream": handle, "parameters": [[size, "hex bytes, first byte first"], ...]}
*/
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define MAX_PARAMETERS 256
#define MAX_FUNCTIONS 8

typedef struct {
  char name[512];
  int parameters;
  int sizes[MAX_PARAMETERS];
} Function;

typedef struct {
  int functions;
  Function function[MAX_FUNCTIONS];
} Module;

/* Attributes are format (1 byte), kind (1 byte), value or length (2 bytes); format 4 has that many
   bytes of payload. A parameter's payload: u32, u16 ordinal, u16 offset, u32 with the size above
   bit 18. */
static void read_parameters(Function *f, const unsigned char *at, size_t bytes) {
  const unsigned char *end = at + bytes;
  while (at + 4 <= end) {
    unsigned short length;
    memcpy(&length, at + 2, 2);
    if (at[0] == 0x04 && at[1] == 0x17 && length == 12) {
      unsigned short ordinal;
      unsigned int word;
      memcpy(&ordinal, at + 8, 2);
      memcpy(&word, at + 12, 4);
      if (ordinal < MAX_PARAMETERS) {
        f->sizes[ordinal] = (int)(word >> 18);
        if (ordinal >= f->parameters) f->parameters = ordinal + 1;
      }
    }
    at += 4 + (at[0] == 0x04 ? length : 0);
  }
}

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  const unsigned char *base = image;
  const Elf64_Ehdr *header = image;
  const char *names;
  Module *m = calloc(1, sizeof *m);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(base + header->e_shoff);
  names = (const char *)(base + sections[header->e_shstrndx].sh_offset);
  for (int i = 0; i < header->e_shnum && m->functions < MAX_FUNCTIONS; i++) {
    const char *name = names + sections[i].sh_name;
    if (strncmp(name, ".nv.info.", 9)) continue;
    Function *f = &m->function[m->functions++];
    snprintf(f->name, sizeof f->name, "%s", name + 9);
    read_parameters(f, base + sections[i].sh_offset, sections[i].sh_size);
  }
  *out = (CUmodule)m;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  Module *m = (Module *)module;
  for (int i = 0; i < m->functions; i++) {
    if (!strcmp(m->function[i].name, name)) {
      *out = (CUfunction)&m->function[i];
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **given, void **extra) {
  Function *f = (Function *)function;
  FILE *log = fopen(getenv("CUDA_STUB_LOG"), "a");
  if (!log) return CUDA_ERROR_FILE_NOT_FOUND;
  fprintf(log, "{\"kernel\": \"%s\", \"function\": %llu, \"grid\": [%u, %u, %u], \"threads\": %u, ",
          f->name, (unsigned long long)function, c->gridDimX, c->gridDimY, c->gridDimZ,
          c->blockDimX * c->blockDimY * c->blockDimZ);
  fprintf(log, "\"shared\": %u, \"stream\": %llu, \"parameters\": [", c->sharedMemBytes,
          (unsigned long long)c->hStream);
  for (int i = 0; i < f->parameters; i++) {
    const unsigned char *bytes = given[i];
    fprintf(log, "%s[%d, \"", i ? ", " : "", f->sizes[i]);
    for (int k = 0; k < f->sizes[i]; k++) fprintf(log, "%02x", bytes[k]);
    fprintf(log, "\"]");
  }
  fprintf(log, "]}\n");
  fclose(log);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  *v = 232448; /* shared memory of an SM90 block; other attributes only need to be large */
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
  *(CUdeviceptr *)v = p;
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *out) {
  *out = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult r, const char **s) {
  *s = "refused by the stub";
  return CUDA_SUCCESS;
}

/* The address of the tensor stands for its descriptor. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType t, cuuint32_t rank, void *at,
                                const cuuint64_t *dims, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave i, CUtensorMapSwizzle s,
                                CUtensorMapL2promotion p, CUtensorMapFloatOOBfill f) {
  memset(map, 0, sizeof *map);
  memcpy(map, &at, sizeof at);
  return CUDA_SUCCESS;
}

#define SUCCEEDS(name, ...) \
  CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }
#define GIVES(value, name, type, ...) \
  CUresult name(type *out, ##__VA_ARGS__) { *out = (type)(value); return CUDA_SUCCESS; }

SUCCEEDS(cuInit, unsigned flags)
SUCCEEDS(cuCtxSetCurrent, CUcontext c)
SUCCEEDS(cuCtxPushCurrent_v2, CUcontext c)
SUCCEEDS(cuModuleUnload, CUmodule m)
SUCCEEDS(cuFuncSetAttribute, CUfunction f, CUfunction_attribute a, int v)
SUCCEEDS(cuFuncSetCacheConfig, CUfunction f, CUfunc_cache c)
SUCCEEDS(cuCtxSetLimit, CUlimit l, size_t v)
GIVES(1, cuDeviceGetCount, int)
GIVES(1, cuCtxGetCurrent, CUcontext)
GIVES(1, cuCtxPopCurrent_v2, CUcontext)
GIVES(0, cuCtxGetDevice, CUdevice)
GIVES(0, cuDeviceGet, CUdevice, int ordinal)
GIVES(1, cuDevicePrimaryCtxRetain, CUcontext, CUdevice d)
GIVES(1, cuOccupancyMaxActiveClusters, int, CUfunction f, const CUlaunchConfig *c)
GIVES(0, cuCtxGetLimit, size_t, CUlimit l)
GIVES(13000, cuDriverGetVersion, int)
