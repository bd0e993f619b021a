#include "edgepos.h"
#include "threads_pthread.h"
