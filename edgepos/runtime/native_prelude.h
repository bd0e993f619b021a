#include "edgepos.h"
#include "edgepos_cpu.h"
#include "threads_pthread.h"
